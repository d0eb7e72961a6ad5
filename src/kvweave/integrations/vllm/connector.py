"""The class that vLLM loads: its connector interface, each method handed on to one of our two roles."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvweave.errors import LocalProtocolError
from kvweave.integrations.vllm.metadata import Finished, Heard, RankHandshake
from kvweave.integrations.vllm.offers import only_full_and_states
from kvweave.integrations.vllm.params import is_offered
from kvweave.integrations.vllm.scheduler import SchedulerRole
from kvweave.integrations.vllm.settings import read_settings
from kvweave.integrations.vllm.stats import KVWeavePromMetrics, KVWeaveStats
from kvweave.integrations.vllm.support import has_neighbours, refuse_unsupported
from kvweave.integrations.vllm.version import require_known_version
from kvweave.integrations.vllm.worker import WorkerRole
from kvweave.transport.base import Transport


class KVWeaveConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Moves a request's cache from the vLLM that prefilled it to the vLLM that decodes it, whatever their shapes.

    ``{"kv_connector": "KVWeaveConnector", "kv_connector_module_path": "kvweave.integrations.vllm", "kv_role":
    "kv_producer"}`` on the prefill side, ``kv_consumer`` on the decode side; see ``settings``.
    """

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        require_known_version()
        super().__init__(vllm_config, role, kv_cache_config)
        _join_logging()
        engine = get_current_vllm_config_or_none()
        refuse_unsupported(vllm_config, engine)
        settings = read_settings(vllm_config)
        self._scheduler: SchedulerRole | None = None
        self._worker: WorkerRole | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerRole(vllm_config, kv_cache_config, settings)
        else:
            self._worker = WorkerRole(
                vllm_config,
                kv_cache_config,
                settings,
                partial(self.make_transport, staging=settings.staging, same_host=settings.same_host),
                has_neighbours(engine),
            )

    @staticmethod
    def make_transport(name: str, staging: str = "auto", same_host: bool = True) -> Transport:
        """One rank's transport: a worker has one of its own. See ``NixlTransport``."""
        from kvweave.transport.nixl import NixlTransport

        return NixlTransport(name, staging, same_host)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """A fetch brings the states of its last token, whatever the local hit has; windows it brings from there on."""
        return only_full_and_states(self._kv_cache_config)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """All groups: what is loaded are the request's own blocks."""
        return tuple(self._kv_cache_config.transfer_group_ids)

    # Scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """See vLLM."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._in_scheduler.kv_cache_manager = kv_cache_manager

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[Any, object]) -> None:
        """See vLLM; all workers' descriptions, at start."""
        self._in_scheduler.join(metadata)

    def set_xfer_handshake_metadata(self, metadata: Mapping[Any, object]) -> None:
        """See vLLM."""
        self._in_scheduler.join(metadata)

    def on_new_request(self, request: Any) -> None:
        """See vLLM."""
        self._in_scheduler.arrive(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See vLLM; loads are asynchronous."""
        missing = self._in_scheduler.missing_tokens(request, num_computed_tokens)
        return missing, bool(missing)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See vLLM."""
        self._in_scheduler.allocate(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Finished:
        """See vLLM."""
        return self._in_scheduler.take_finished(scheduler_output.total_num_scheduled_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """See vLLM; what has been loaded by now is reported here, a step before the workers could do it."""
        loaded = self._in_scheduler.take_loaded()
        if loaded:
            connector_output.finished_recving = loaded | (connector_output.finished_recving or set())

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See vLLM."""
        params = self._in_scheduler.finish(request, block_ids)
        return is_offered(params), params

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """See vLLM."""
        return self.request_finished_all_groups(request, (block_ids,))

    # Worker

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """See vLLM."""
        self._in_worker.register(kv_caches)

    def get_handshake_metadata(self) -> RankHandshake | None:
        """See vLLM."""
        return self._in_worker.handshake

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """See vLLM; it has zeroed this step's blocks by now, and computes after it."""
        super().bind_connector_metadata(connector_metadata)
        self._in_worker.prepare(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """See vLLM; nothing is loaded here, our own thread does that."""
        metadata = self._get_connector_metadata()
        if isinstance(metadata, Finished):
            self._in_worker.note(metadata)

    def build_connector_worker_meta(self) -> Heard | None:
        """See vLLM."""
        return self._in_worker.answer()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """See vLLM."""
        return self._in_worker.take_results()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A request is computed only after its load."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved: blocks are read where they lie."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    # Both

    def get_kv_connector_stats(self) -> KVWeaveStats | None:
        """See vLLM; the scheduler role knows everything."""
        return None if self._scheduler is None else self._scheduler.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVWeaveStats:
        """See vLLM."""
        return KVWeaveStats(data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> KVWeavePromMetrics:
        """See vLLM."""
        return KVWeavePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """See vLLM."""
        for role in (self._worker, self._scheduler):
            if role is not None:
                role.shutdown()

    @property
    def _in_scheduler(self) -> SchedulerRole:
        if self._scheduler is None:
            raise LocalProtocolError("connector: a worker's connector was asked what only a scheduler's knows")
        return self._scheduler

    @property
    def _in_worker(self) -> WorkerRole:
        if self._worker is None:
            raise LocalProtocolError("connector: a scheduler's connector was asked what only a worker's knows")
        return self._worker


def _join_logging() -> None:
    """Our log lines go where vLLM's go, unless somebody has said otherwise."""
    ours, theirs = logging.getLogger("kvweave"), logging.getLogger("vllm")
    if not ours.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)
        ours.propagate = theirs.propagate
