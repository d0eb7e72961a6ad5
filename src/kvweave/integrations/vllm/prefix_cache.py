"""Keeps blocks of a request out of vLLM's prefix cache that hold a hole."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def keep_unpublished(kv_cache_manager: Any, request_id: str, group: int, block_ids: Collection[int]) -> None:
    """Makes vLLM publish a request's blocks of a cache group from behind these ones on.

    vLLM publishes the full blocks of a request from ``num_cached_block`` on, in order
    (``SingleTypeKVCacheManager.cache_blocks``). Holes are at the beginning of what was loaded, where the source's
    window had moved on, so nothing in front of them is left to be published. To be called before vLLM takes the request
    up again after its load.
    """
    manager = kv_cache_manager.coordinator.single_type_managers[group]
    holes = set(block_ids)
    found = [place for place, block in enumerate(manager.req_to_blocks[request_id]) if block.block_id in holes]
    if found:
        manager.num_cached_block[request_id] = max(manager.num_cached_block.get(request_id, 0), found[-1] + 1)
