"""A connector that stands beside ours as one that saves caches does: it holds each request's blocks for some steps.

vLLM's OffloadingConnector has no workers for the CPU, so this one takes its place between real servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
)

from tests.integrations.vllm.idle_connector import IdleConnector

HELD_STEPS = 3


@dataclass
class Held(KVConnectorMetadata):
    """Requests whose blocks are held no more."""

    over: frozenset[str]


class SavingConnector(IdleConnector):
    """Loads nothing; in each process it is either the scheduler's or a worker's part."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._held: dict[str, int] = {}

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert num_external_tokens == 0

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        self._held[request.request_id] = HELD_STEPS
        return True, None

    def build_connector_meta(self, scheduler_output: Any) -> Held:
        self._held = {name: steps - 1 for name, steps in self._held.items()}
        over = frozenset(name for name, steps in self._held.items() if steps == 0)
        self._held = {name: steps for name, steps in self._held.items() if steps > 0}
        return Held(over)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Held)
        return KVConnectorTransferResults(finished_sending=set(metadata.over))
