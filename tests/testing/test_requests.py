from __future__ import annotations

import numpy as np
import pytest

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.testing.requests import block_tables, first_needed, images_of
from tests.core.engines import engine, mamba2_of, model_of


def table_of(spec: LayerSpec, num_tokens: int, tp: int = 1, dcp: int = 1, **options: float) -> np.ndarray:
    images = images_of(engine(model_of(spec), tp, CacheConfig(4, num_blocks=9, speculative_blocks=2), dcp=dcp))
    return block_tables(images, num_tokens, np.random.default_rng(1), **options)["full"]


def test_blocks_are_distinct_and_enough() -> None:
    table = table_of(FullAttentionSpec(1, 1), 17)
    assert len(table) == len(set(table)) == 5


def test_spare_blocks_end_the_table() -> None:
    assert len(table_of(FullAttentionSpec(1, 1), 17, spare=2)) == 7


def test_context_parallel_ranks_need_fewer_blocks() -> None:
    assert len(table_of(MLAAttentionSpec(1), 17, tp=2, dcp=2)) == 3


@pytest.mark.parametrize(("let_go", "nulls"), [(0.0, 0), (0.5, 1), (1.0, 2)])
def test_blocks_behind_a_window_are_null(let_go: float, nulls: int) -> None:
    table = table_of(SlidingWindowSpec(1, 1, 5), 15, let_go=let_go)
    assert np.count_nonzero(table == NULL_BLOCK) == nulls


def test_a_state_has_leading_blocks_and_scratch_blocks_around_the_running_one() -> None:
    table = table_of(mamba2_of(1, 1), 17)
    assert len(table) == 5 and table[0] == NULL_BLOCK and NULL_BLOCK not in table[1:]


@pytest.mark.parametrize(
    ("spec", "token", "first"),
    [
        (SlidingWindowSpec(1, 1, 4), 10, 7),
        (SlidingWindowSpec(1, 1, 4), 2, 0),
        (ChunkedLocalAttentionSpec(1, 1, 4), 10, 8),
        (ChunkedLocalAttentionSpec(1, 1, 4), 8, 8),
        (FullAttentionSpec(1, 1), 10, 0),
    ],
    ids=["window", "window not full yet", "chunk", "a new chunk", "full"],
)
def test_what_the_next_token_looks_at(spec: LayerSpec, token: int, first: int) -> None:
    tokens = spec.arrays()[0].tokens
    assert tokens is not None and first_needed(tokens, token) == first


def test_a_pool_too_small_is_an_error() -> None:
    with pytest.raises(ValueError, match="need 10 blocks, the pool has 9"):
        table_of(FullAttentionSpec(1, 1), 40)


def test_a_layout_without_a_cache_configuration_has_no_image() -> None:
    built = engine(model_of(FullAttentionSpec(1, 1)))
    with pytest.raises(ValueError, match="not built from a CacheConfig"):
        images_of(EngineLayout(built.model, built.parallel, built.ranks))
