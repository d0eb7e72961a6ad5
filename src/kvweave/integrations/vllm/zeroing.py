"""Blocks that a load writes only in part are zeroed before it, where vLLM zeroes new blocks.

Where vLLM lays groups of different kinds over one another, what a block held before may be no number in its new
precision, and attention multiplies also what it masks (``KVCacheConfig.needs_kv_cache_zeroing``). vLLM zeroes the new
blocks of a step before it computes, but leaves blocks of a load alone, which would race with it. So we hand it those
that stay partly unwritten, and read into them only after that step's zeroing.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, iter_layer_specs


def zero_unwritten(kv_cache_manager: Any, request_id: str, num_tokens: int, num_loaded: int) -> None:
    """Makes vLLM zero a request's partly written blocks in this step, of the last ``num_loaded`` of its tokens.

    Of groups that keep everything that is the last block, if it is not full. Of windows any block may have a hole.
    """
    for manager in kv_cache_manager.coordinator.single_type_managers:
        if not manager.records_new_block_ids:
            continue
        first = (num_tokens - num_loaded) // manager.block_size
        if all(isinstance(spec, FullAttentionSpec) for spec in iter_layer_specs(manager.kv_cache_spec)):
            first = num_tokens // manager.block_size
        blocks = manager.req_to_blocks[request_id][first : -(-num_tokens // manager.block_size)]
        manager.new_block_ids.extend(block.block_id for block in blocks if not block.is_null)
