"""Every block is given out once and taken back once; windows and states take what they need."""

from __future__ import annotations

import pytest

from kvweave import NULL_BLOCK, CacheConfig, EngineLayout, ParallelConfig
from kvweave.core.array import DType
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec
from kvweave.engines.hf.block_pool import BlockPool
from kvweave.errors import LocalProtocolError

FLOAT = DType.of("float32")
SPECS: dict[str, LayerSpec] = {
    "full": FullAttentionSpec(4, 8, dtype=FLOAT),
    "window": SlidingWindowSpec(4, 8, 20, dtype=FLOAT),
    "rate": MLAAttentionSpec(6, FLOAT, tokens_per_state=4),
    "state": MambaSpec.mamba2(8, 4, 2, 3, 4, FLOAT, FLOAT),
}


def pool(*names: str, num_blocks: int = 12, **cache: int) -> BlockPool:
    groups = [KVCacheGroup(name, (CacheLayer(f"layers.{n}", n, SPECS[name]),)) for n, name in enumerate(names)]
    model = ModelCache("example", len(groups), tuple(groups))
    return BlockPool(EngineLayout.build(model, ParallelConfig(), CacheConfig(16, num_blocks=num_blocks, **cache)))


@pytest.mark.parametrize(
    ("group", "num_tokens", "nulls", "blocks"),
    [
        ("full", 1, 0, 1),
        ("full", 16, 0, 1),
        ("full", 17, 0, 2),
        ("window", 16, 0, 1),
        ("window", 100, 5, 2),
        ("rate", 100, 0, 7),
        ("state", 1, 0, 1),
        ("state", 1000, 0, 1),
    ],
    ids=str,
)
def test_a_table_is_as_long_as_its_tokens_need(group, num_tokens, nulls, blocks):
    table = pool(group).allocate(num_tokens)[group]
    assert table[:nulls] == [NULL_BLOCK] * nulls
    assert NULL_BLOCK not in table[nulls:]
    assert len(table) == nulls + blocks


def test_a_state_that_speculates_has_scratch_blocks():
    assert len(pool("state", speculative_blocks=2).allocate(5)["state"]) == 3


def test_no_block_is_given_out_twice():
    blocks = pool("full")
    tables = [blocks.allocate(48)["full"] for _ in range(4)]
    assert sorted(block for table in tables for block in table) == list(range(12))


def test_blocks_come_in_no_order_but_the_same_for_a_seed():
    tables = [pool("full").allocate(160)["full"] for _ in range(2)]
    assert tables[0] == tables[1] != sorted(tables[0])


def test_released_blocks_are_given_out_again():
    blocks = pool("full", "window")
    for _ in range(9):
        blocks.release(blocks.allocate(150))
    assert blocks.used() == 0


def test_used_counts_over_all_groups_and_without_nulls():
    blocks = pool("full", "window", "state")
    blocks.allocate(100)
    assert blocks.used() == 7 + 2 + 1


def test_a_pool_too_small_says_so_and_takes_nothing():
    blocks = pool("state", "full", num_blocks=4)
    with pytest.raises(LocalProtocolError, match="group full: 4 free blocks, 65 tokens need 5; give the engine more"):
        blocks.allocate(65)
    assert blocks.used() == 0


def test_a_block_that_is_free_already_is_not_taken_back():
    blocks = pool("full")
    tables = blocks.allocate(20)
    blocks.release(tables)
    with pytest.raises(LocalProtocolError, match="group full: a block is released that is free already"):
        blocks.release(tables)
