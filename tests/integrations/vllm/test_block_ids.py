from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as vllm_specs

from kvweave.core.block_table import NULL_BLOCK
from kvweave.errors import BlockTableError
from kvweave.integrations.vllm.block_ids import BlockIds, vllm_ids

ATTENTION = vllm_specs.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
WINDOW = vllm_specs.SlidingWindowSpec(
    block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, sliding_window=32
)
RING = vllm_specs.CircularBufferSpec(block_size=8, num_kv_heads=1, head_size=64, head_size_v=0, dtype=torch.float32)


def state(block_size: int) -> Any:
    return vllm_specs.MambaSpec(block_size=block_size, shapes=((3, 64),), dtypes=(torch.bfloat16,))


def ids_of(*specs: Any) -> BlockIds:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    return BlockIds.of(SimpleNamespace(kv_cache_groups=groups))


def table(spec: Any, ids: list[int], num_tokens: int) -> list[int]:
    return ids_of(spec).tables([ids], num_tokens)["group.0"].tolist()


def test_vllms_null_block_becomes_ours_and_back() -> None:
    assert table(WINDOW, [0, 0, 7, 9], 60) == [NULL_BLOCK, NULL_BLOCK, 7, 9]
    assert vllm_ids(ids_of(WINDOW).tables([[0, 7]], 20)["group.0"]) == [0, 7]


def test_groups_keep_their_order_and_uniform_ones_are_looked_into() -> None:
    uniform = vllm_specs.UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs={"a": state(64), "b": state(64)})
    found = ids_of(ATTENTION, uniform).tables([[3, 4], [0, 8]], 100)
    assert {name: ids.tolist() for name, ids in found.items()} == {"group.0": [3, 4], "group.1": [8]}


@pytest.mark.parametrize(
    ("block_size", "ids", "num_tokens", "running"),
    [
        (4096, [5], 100, 5),
        (4096, [5, 6, 7], 100, 5),
        (64, [0, 9], 100, 9),
        (64, [0, 9, 11, 12], 128, 9),
        (64, [4, 0, 12, 13], 129, 12),
        (64, [4], 1, 4),
    ],
    ids=["one block", "scratch behind", "snapshots", "at the edge", "behind the edge", "one token"],
)
def test_a_state_stands_at_its_last_tokens_position(
    block_size: int, ids: list[int], num_tokens: int, running: int
) -> None:
    assert table(state(block_size), ids, num_tokens) == [running]


@pytest.mark.parametrize("ids", [[0], [7, 0], []], ids=str)
def test_a_state_without_its_block_is_refused(ids: list[int]) -> None:
    with pytest.raises(BlockTableError, match=r"group\.0: the state after 100 tokens stands at position 1 of"):
        table(state(64), ids, 100)


def test_a_ring_is_its_one_block() -> None:
    assert table(RING, [6], 100) == [6]


def test_another_number_of_groups_is_refused() -> None:
    with pytest.raises(BlockTableError, match="block ids of 1 groups, the cache configuration has 2"):
        ids_of(ATTENTION, WINDOW).tables([[1]], 10)
