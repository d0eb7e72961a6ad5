"""A vLLM connector that only looks: each worker describes its memory, the scheduler joins the descriptions and keeps
what it sees of a request's blocks when it finishes. It transfers nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorRole

from kvweave.core.layout import EngineLayout
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.integrations.vllm.engine import join_ranks, read_worker
from kvweave.integrations.vllm.layout import RankDescription, describe_rank, refuse_configuration
from tests.integrations.vllm.idle_connector import IdleConnector


@dataclass
class Seen:
    """What the connectors of this process saw."""

    layout: EngineLayout | None = None
    block_ids: Any = None
    tables: Any = None
    arrays: dict[Any, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


SEEN = Seen()


@dataclass
class Described(KVConnectorHandshakeMetadata):
    description: RankDescription


class RecordingConnector(IdleConnector):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        refuse_configuration(kv_cache_config)
        self._description: RankDescription | None = None

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        worker = read_worker(self._vllm_config, self._kv_cache_config)
        self._description = describe_rank(kv_caches, self._kv_cache_config, worker)

    def get_handshake_metadata(self) -> Described | None:
        return None if self._description is None else Described(self._description)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Described]) -> None:
        SEEN.layout = join_ranks([found.description for found in metadata.values()], "tiny")

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        from tests.integrations.vllm.live_memory import read_arrays

        SEEN.block_ids = block_ids
        SEEN.tables = BlockIds.of(self._kv_cache_config).tables(block_ids, request.num_prompt_tokens)
        if SEEN.layout is not None and SEEN.layout.parallel.ranks_per_engine == 1:
            SEEN.arrays = read_arrays(SEEN.layout, SEEN.tables, request.num_prompt_tokens)
        return False, None
