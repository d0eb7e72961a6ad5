"""vLLM's NixlConnector computing the descriptor ids of the same request: its own function, called as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LAYERS = 61


def descriptor_ids(num_blocks: int, source_blocks: list[int], target_blocks: list[int]) -> Callable[[], Any] | None:
    """What the connector does per request for 61 MLA layers: ids of the local and of the remote side.

    None where vLLM is not installed.
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
    except ImportError:
        return None
    worker: Any = object.__new__(NixlBaseConnectorWorker)
    worker._has_mamba = False
    worker._transfer_layer_group_ids = []
    worker._uses_region_group_mapping = False
    worker.num_regions = LAYERS
    worker.region_group_ids = [0] * LAYERS
    worker.block_len_per_layer = [1] * LAYERS

    def both_sides() -> Any:
        remote = worker._compute_desc_ids([source_blocks], num_blocks, None, 1)
        return remote, worker._compute_desc_ids([target_blocks], num_blocks, None, 1)

    return both_sides
