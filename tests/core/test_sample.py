from dataclasses import replace

import numpy as np
import pytest

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.plan import plan_transfer
from kvweave.core.sample import all_shards, block_tokens, room_tokens, sample_tables, shared_pools
from kvweave.core.spec import MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

SMALL = CacheConfig(block_size=4, num_blocks=8)


def test_tables_in_order_name_the_blocks_that_the_tokens_need():
    assert sample_tables(engine(model_of(heads_of(2)), cache=SMALL), 9)["full"].tolist() == [0, 1, 2]


def test_shuffled_tables_name_distinct_blocks():
    table = sample_tables(engine(model_of(heads_of(2)), cache=SMALL), 30, np.random.default_rng(1))["full"]
    assert len(set(table.tolist())) == len(table) == 8
    assert table.tolist() != sorted(table.tolist())


def test_a_state_has_its_running_block_and_scratch():
    layout = engine(model_of(mamba2_of(1, 2), group="state"), cache=CacheConfig(num_blocks=8, speculative_blocks=2))
    assert sample_tables(layout, 100)["state"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("num_tokens", "null"), [(10, 0), (11, 1), (18, 2), (19, 3)])
def test_blocks_behind_a_window_are_null(num_tokens, null):
    layout = engine(model_of(SlidingWindowSpec(2, 2, 8)), cache=SMALL)
    assert np.count_nonzero(sample_tables(layout, num_tokens)["full"] == NULL_BLOCK) == null


def test_a_table_ends_with_the_pool():
    assert len(sample_tables(engine(model_of(heads_of(2)), cache=SMALL), 1000)["full"]) == 8


@pytest.mark.parametrize(
    ("spec", "parallel", "tokens"),
    [
        (heads_of(2), {}, 4),
        (MLAAttentionSpec(2), {"tp": 2, "dcp": 2}, 8),
        (MLAAttentionSpec(2, tokens_per_state=8), {}, 8),
        (mamba2_of(1, 2), {}, 1),
    ],
    ids=["plain", "dcp", "compressed", "state"],
)
def test_a_block_reaches_over_its_share_of_the_tokens(spec, parallel, tokens):
    layout = engine(model_of(spec), cache=SMALL, **parallel)
    assert {block_tokens(shard) for _, shard in all_shards(layout)} == {tokens}


def test_the_smallest_group_decides_how_long_a_request_may_be():
    model = model_of_groups({"full": [heads_of(2)], "rate.8": [MLAAttentionSpec(2, tokens_per_state=8)]})
    assert room_tokens(engine(model, cache=SMALL)) == 32
    assert room_tokens(engine(model_of(mamba2_of(1, 2)), cache=SMALL)) == 1 << 20


def one_tensor_for_two_groups(layout: EngineLayout) -> EngineLayout:
    """Layers of both groups in the same memory, as vLLM's hybrid cache keeps them."""
    rank = layout.rank()
    shards = tuple(replace(shard, places=(replace(shard.places[0], region=0),)) for shard in rank.shards)
    return replace(layout, ranks=(replace(rank, shards=shards, regions=rank.regions[:1]),))


def test_groups_in_one_tensor_take_their_blocks_from_one_pool() -> None:
    model = model_of_groups({"full": [heads_of(2)], "window": [SlidingWindowSpec(2, 2, 8)], "rest": [heads_of(3)]})
    apart = engine(model)
    shared = one_tensor_for_two_groups(engine(model_of_groups({"full": [heads_of(2)], "window": [heads_of(2)]})))
    assert set(shared_pools(apart).values()) == {frozenset([group]) for group in ("full", "window", "rest")}
    assert set(shared_pools(shared).values()) == {frozenset(["full", "window"])}
    tables = sample_tables(shared, 60, np.random.default_rng(1))
    assert not set(tables["full"]) & set(tables["window"]) and room_tokens(shared) * 2 == room_tokens(apart)
    assert plan_transfer(shared, shared).verify().ok
