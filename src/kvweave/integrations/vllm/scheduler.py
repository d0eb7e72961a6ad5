"""The scheduler role: both coordinators of an engine, and what vLLM's scheduler asks and tells.

Its engines exist once all workers have described themselves (``join``), which is before the first request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvweave.core.layout import EngineLayout
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.integrations.vllm.engine import join_ranks
from kvweave.integrations.vllm.fingerprint import model_identity
from kvweave.integrations.vllm.layout import refuse_configuration
from kvweave.integrations.vllm.loads import Loads
from kvweave.integrations.vllm.metadata import Finished, RankHandshake
from kvweave.integrations.vllm.offers import Offers, kept_back, whole_block_tokens
from kvweave.integrations.vllm.pause import BRIEF_SECONDS, PAUSE_SECONDS, Pause
from kvweave.integrations.vllm.prefix_cache import keep_unpublished
from kvweave.integrations.vllm.progress import Progress
from kvweave.integrations.vllm.settings import DECODE, PREFILL, Settings
from kvweave.integrations.vllm.stats import KVWeaveStats, TransferStats
from kvweave.integrations.vllm.zeroing import zero_unwritten
from kvweave.runtime import DecodeEngine, PrefillEngine
from kvweave.runtime.links import RankLink
from kvweave.runtime.naming import engine_name


class SchedulerRole:
    """One engine, seen from its scheduler."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings) -> None:
        refuse_configuration(kv_cache_config)
        refuse_replay(kv_cache_config)
        self._vllm_config = vllm_config
        self._settings = settings
        self._groups = range(len(kv_cache_config.kv_cache_groups))
        self._block_ids = BlockIds.of(kv_cache_config)
        self._kept_back = kept_back(vllm_config, kv_cache_config)
        self._pause = Pause(vllm_config.max_concurrent_batches)
        self._block_tokens = whole_block_tokens(vllm_config, kv_cache_config)
        self._zeroing = bool(kv_cache_config.needs_kv_cache_zeroing)
        self._shared = False
        self._zeroed: set[int] = set()
        self._stats = TransferStats()
        self._engines: list[PrefillEngine | DecodeEngine] = []
        self._offers: Offers | None = None
        self._loads: Loads | None = None
        self.kv_cache_manager: Any = None

    def join(self, metadata: Mapping[Any, object]) -> None:
        """Takes all workers' descriptions, connects to them, and opens the control channels.

        Raises ``ConfigurationError`` when another connector's data came instead, ``LayoutError`` for a missing rank.
        """
        ranks = [rank for rank in metadata.values() if isinstance(rank, RankHandshake)]
        if not ranks:
            raise ConfigurationError(
                "MultiConnector: another connector's handshake data came instead of KVWeaveConnector's; "
                "name KVWeaveConnector first among the connectors"
            )
        self._shared = any(rank.shared for rank in ranks)
        ranks.sort(key=lambda rank: rank.description.rank.coordinates)
        name = str(self._vllm_config.model_config.model)
        layout = join_ranks([rank.description for rank in ranks], name, self._fingerprint())
        if PREFILL in self._settings.roles:
            engine = self._open_prefill(layout, ranks)
            progress = Progress(engine, self._block_ids, self._kept_back, self._block_tokens)
            self._offers = Offers(engine, self._block_ids, self._kept_back, progress, self._pause)
        if DECODE in self._settings.roles:
            reading = self._open_decode(layout, ranks)
            threshold, computed_here = self._settings.recompute_threshold, max(self._kept_back, 1)
            self._loads = Loads(reading, self._block_ids, threshold, self._stats, self._pause, computed_here)

    def arrive(self, request: Any) -> None:
        """A new request."""
        if self._offers is not None:
            self._offers.arrive(request)
        if self._loads is not None:
            self._loads.arrive(request)

    def missing_tokens(self, request: Any, num_computed: int) -> int | None:
        """How many tokens will be loaded; None when it must be asked again."""
        return 0 if self._loads is None else self._loads.missing_tokens(request, num_computed)

    def allocate(self, request: Any, block_ids: Sequence[Sequence[int]], num_loaded: int) -> None:
        """A request has blocks; ``num_loaded`` tokens go into the last of them."""
        if self._loads is None:
            return
        fenced = (self._zeroing or self._shared) and num_loaded > 0
        fetch = self._loads.allocate(request, block_ids, num_loaded, fenced)
        if not fenced or fetch is None:
            return
        self._zeroed.add(fetch.number)
        if self._zeroing:
            zero_unwritten(self.kv_cache_manager, request.request_id, fetch.num_tokens, num_loaded)

    def finish(self, request: Any, block_ids: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        """A request has ended; the answer to one that asked for an offer (see ``params.is_offered``)."""
        if self._loads is not None:
            self._loads.finish(request)
        return None if self._offers is None else self._offers.finish(request, block_ids)

    def take_finished(self, num_scheduled_tokens: int) -> Finished:
        """What the workers are to report in a step that computes so many tokens.

        While something is loaded, most of the pause is ``take_loaded``'s: what was loaded is then computed in the next
        step. What must be said at once to let a fetch begin waits for nothing.
        """
        if self._offers is not None:
            self._offers.offer_progress(self.kv_cache_manager)
        self._pause.count(num_scheduled_tokens)
        if not self._zeroed:
            loading = self._loads is not None and self._loads.under_way
            self._pause.take(BRIEF_SECONDS if loading else PAUSE_SECONDS)
        released = frozenset() if self._offers is None else frozenset(self._offers.take_released())
        zeroed, self._zeroed = frozenset(self._zeroed), set()
        watched = self._offers is not None and self._offers.progressing
        if self._loads is None:
            return Finished(released, watched=watched)
        return Finished(released, self._loads.take_failed(), zeroed, watched or self._loads.under_way)

    def take_loaded(self) -> frozenset[str]:
        """A step was processed: requests whose load was delivered since, whose blocks hold what was offered."""
        if self._offers is not None:
            self._offers.offer_progress(self.kv_cache_manager)
        told = self._loads is not None and self._loads.silent and self._pause.take()
        delivered = {} if self._loads is None else self._loads.take_delivered()
        if told and not delivered:
            self._pause.end()
        for request_id, report in delivered.items():
            if report.incomplete:
                self._keep_unpublished(request_id, report.incomplete)
        return frozenset(delivered)

    def take_stats(self) -> KVWeaveStats | None:
        """What happened since the last call."""
        return self._stats.take()

    def shutdown(self) -> None:
        """Ends all transfers and the control channels, in bounded time."""
        for engine in self._engines:
            engine.close()

    def _fingerprint(self) -> str:
        stated = self._settings.fingerprint
        return model_identity(self._vllm_config) if stated is None else stated

    def _open_prefill(self, layout: EngineLayout, ranks: list[RankHandshake]) -> PrefillEngine:
        settings = self._settings
        engine = PrefillEngine(
            layout, workers=_links(ranks, PREFILL), engine_id=engine_name(PREFILL), bind=settings.bind,
            advertise=settings.advertise, peers=settings.peers, keys=settings.keys,
            lease_seconds=settings.lease_seconds, observer=self._stats.count,
        )  # fmt: skip
        self._engines.append(engine)
        return engine

    def _open_decode(self, layout: EngineLayout, ranks: list[RankHandshake]) -> DecodeEngine:
        links = _links(ranks, DECODE)
        for number, link in enumerate(links):
            link.adopt(number, layout)
        settings = self._settings
        engine = DecodeEngine(
            layout, workers=links, engine_id=engine_name(DECODE), peers=settings.peers, keys=settings.keys,
            observer=self._stats.count, bind=settings.bind if settings.port and settings.roles == (DECODE,) else None,
        )  # fmt: skip
        self._engines.append(engine)
        return engine

    def _keep_unpublished(self, request_id: str, incomplete: Mapping[str, tuple[int, ...]]) -> None:
        for number in self._groups:
            blocks = incomplete.get(self._block_ids.groups[number].name, ())
            if blocks and self.kv_cache_manager is not None:
                keep_unpublished(self.kv_cache_manager, request_id, number, blocks)


def refuse_replay(kv_cache_config: Any) -> None:
    """Raises ``ConfigurationError`` for models that recompute their window after a prefix hit (DeepSeek V4.1)."""
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        replayed = group.kv_cache_spec.prefix_replay_tokens
        if replayed:
            raise ConfigurationError(
                f"cache group {number}: vLLM replays its last {replayed} tokens after a prefix hit, which "
                "cannot be joined with a transfer; serve this model without the connector"
            )


def _links(ranks: list[RankHandshake], role: str) -> list[RankLink]:
    return [RankLink(rank.endpoints[role], rank.agent_data) for rank in ranks]
