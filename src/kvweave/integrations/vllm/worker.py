"""The worker role: one rank's memory, described, registered, and driven by our own thread.

Everything that moves bytes happens on that thread, and everything that decides happens in the scheduler's process. What
is left for an engine step is to report what the scheduler role says is finished.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.utils.torch_utils import current_stream

from kvweave.core.cache_config import MemoryKind
from kvweave.integrations.vllm.engine import read_worker
from kvweave.integrations.vllm.layout import describe_rank
from kvweave.integrations.vllm.metadata import Finished, Heard, RankHandshake
from kvweave.integrations.vllm.settings import Settings
from kvweave.runtime.naming import TransportFactory
from kvweave.runtime.rank_service import RankService, at_once


class WorkerRole:
    """One rank of one engine."""

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        settings: Settings,
        transport: TransportFactory,
        shared: bool = False,
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._transport = transport
        self._shared = shared
        self._service: RankService | None = None
        self._on_host = True
        self._results = KVConnectorTransferResults()
        self._watched = False
        self.handshake: RankHandshake | None = None

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Describes the live tensors and makes them readable; raises ``ConfigurationError`` or ``LayoutError``."""
        worker = read_worker(self._vllm_config, self._kv_cache_config)
        description = describe_rank(kv_caches, self._kv_cache_config, worker)
        name = transport_name(self._settings, str(worker.coordinates))
        service = RankService(name, description.rank, self._transport(name), self._settings.roles)
        self._service = service
        self._on_host = all(region.memory is MemoryKind.DRAM for region in description.rank.regions)
        self.handshake = RankHandshake(description, service.agent_data, service.endpoints, self._shared)

    def prepare(self, finished: Finished) -> None:
        """Lets fetches begin whose target blocks are zeroed or copied in this step, on a device once that is done."""
        if self._service is None or not finished.zeroed:
            return
        ready = at_once if self._on_host else current_stream().record_event().query
        for fetch in finished.zeroed:
            self._service.allow(fetch, ready)

    def note(self, finished: Finished) -> None:
        """Takes what the scheduler role says of this step."""
        self._results.finished_sending |= finished.released
        self._results.finished_recving |= finished.failed
        self._results.failed_recving |= finished.failed
        self._watched = finished.watched

    def answer(self) -> Heard | None:
        """What makes vLLM ask the scheduler role after this step; None when it waits for nothing."""
        return Heard() if self._watched else None

    def take_results(self) -> KVConnectorTransferResults:
        """What vLLM is to hear, once."""
        results, self._results = self._results, KVConnectorTransferResults()
        return results

    def shutdown(self) -> None:
        """Ends all reads and the transport."""
        if self._service is not None:
            self._service.close()


def transport_name(settings: Settings, rank: str) -> str:
    """A name that no other transport has."""
    return f"{settings.engine_id}/{rank}/{secrets.token_hex(4)}"
