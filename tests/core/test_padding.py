from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.model import ModelCache
from kvweave.core.padding import padded, padding_tokens
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import engine, mamba2_of, model_of, model_of_groups

RANK = RankCoordinates()
HEADS = FullAttentionSpec(8, 16)
HYBRID = model_of_groups({"full": [HEADS], "state": [mamba2_of(1, 4)]})
WINDOWED = model_of_groups({"full": [HEADS], "window.32": [SlidingWindowSpec(8, 16, sliding_window=32)]})


def heads_first(block_size: int = 16, **cache: object) -> CacheConfig:
    return CacheConfig(block_size, "HND", num_blocks=8, **cache)


def padding_between(prefill: EngineLayout, decode: EngineLayout) -> int:
    return padding_tokens(plan_transfer(prefill, decode).of(RANK))


def rows_of(model: ModelCache, num_tokens: int) -> int:
    side = engine(model, cache=heads_first())
    blocks = np.arange(4) * 2
    tables: Mapping[str, np.ndarray] = dict.fromkeys(side.group_names(), blocks)
    return plan_transfer(side, side).descriptors(RANK, tables, tables, num_tokens).num_rows


@pytest.mark.parametrize("model", [model_of(HEADS), HYBRID], ids=["heads", "heads and states"])
def test_a_block_of_heads_is_moved_whole_where_it_would_be_cut_in_every_head(model: ModelCache) -> None:
    side = engine(model, cache=heads_first())
    assert padding_between(side, side) == 16
    assert rows_of(model, 48) + 7 == rows_of(model, 33)


@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_of_several_heads_pads_what_another_rank_holds_of_them(tp: int) -> None:
    model = model_of(HEADS)
    assert padding_between(engine(model, tp, heads_first()), engine(model, 1, heads_first())) == 16


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        pytest.param(*[engine(model_of(HEADS), cache=CacheConfig(16, "NHD", num_blocks=8))] * 2, id="tokens are rows"),
        pytest.param(
            *(engine(model_of(HEADS), cache=heads_first(size)) for size in (16, 32)), id="kernel blocks of unequal size"
        ),
        pytest.param(
            *(engine(model_of(HEADS), cache=CacheConfig(16, layout, num_blocks=8)) for layout in ("HND", "NHD")),
            id="a row for every token anyway",
        ),
        pytest.param(*[engine(WINDOWED, cache=heads_first())] * 2, id="what is visible depends on the last token"),
        pytest.param(*[engine(model_of(FullAttentionSpec(1, 16)), cache=heads_first())] * 2, id="one head"),
        pytest.param(
            *[engine(model_of(MLAAttentionSpec(64)), tp=2, cache=CacheConfig(16, num_blocks=8), dcp=2)] * 2,
            id="tokens dealt out",
        ),
        pytest.param(
            *[engine(model_of(FullAttentionSpec(2, 8192)), cache=heads_first())] * 2,
            id="more bytes than rows are worth",
        ),
    ],
)
def test_nothing_is_padded(prefill: EngineLayout, decode: EngineLayout) -> None:
    assert padding_between(prefill, decode) == 1


@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([1, 16, 128]))
def test_padding_reaches_to_the_end_of_the_last_block_that_is_needed(start: int, more: int, padding: int) -> None:
    tokens = padded(start + more, start, padding)
    assert (tokens == start) if not more else (tokens % padding == 0 and 0 <= tokens - start - more < padding)
