from __future__ import annotations

import pytest
from hypothesis import given, settings

from kvweave.core.build import group_block_tokens
from kvweave.core.cache_config import CacheConfig, KeyValuePacking, KVLayout
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.spec import FullAttentionSpec, MLAAttentionSpec
from kvweave.errors import LayoutError
from kvweave.testing.oracle import layout_problems
from kvweave.testing.strategies import engine_pairs
from tests.core.engines import deepseek_v4, engine, heads_of, model_of

TWO = model_of(heads_of(4), heads_of(4))


@settings(max_examples=80)
@given(pair=engine_pairs())
def test_every_element_lies_where_the_statement_says(pair: tuple[EngineLayout, EngineLayout]) -> None:
    assert layout_problems(pair[0]) == layout_problems(pair[1]) == []


@pytest.mark.parametrize("packing", list(KeyValuePacking))
@pytest.mark.parametrize("layout", list(KVLayout))
def test_every_memory_order_and_packing(layout: str, packing: str) -> None:
    cache = CacheConfig(8, layout, num_blocks=4, kernel_block_size=4, packing=packing, page_padding=6)
    assert layout_problems(engine(TWO, 2, cache)) == []


@pytest.mark.parametrize("layout", ["BLHNC", "BLNHC"])
def test_keys_and_values_of_one_layer_share_its_page(layout: str) -> None:
    shards = engine(TWO, cache=CacheConfig(8, layout, num_blocks=4, packing="page")).rank().shards
    keys, values = ([place.offset for place in shard.places] for shard in shards)
    assert keys[0] < values[0] < keys[1] < values[1]


@pytest.mark.parametrize(("layout", "regions"), [("LBHNC", 2), ("BLHNC", 1)])
def test_layers_have_regions_of_their_own_when_they_are_outermost(layout: str, regions: int) -> None:
    assert len(engine(TWO, cache=CacheConfig(layout=layout)).rank().regions) == regions


def test_a_block_holds_whole_entries_of_every_rate_in_its_group() -> None:
    rates = deepseek_v4().groups[1]
    assert group_block_tokens(rates, 16) == 128
    assert group_block_tokens(rates, 96) == 384


def test_pages_of_unequal_keys_and_values_are_refused() -> None:
    with pytest.raises(
        LayoutError, match=r"page needs K and V rows of one size, found \[4, 6\] bytes; use content or region"
    ):
        engine(model_of(FullAttentionSpec(2, 2, 3)), cache=CacheConfig(packing="page"))


@pytest.mark.parametrize(("heads", "tp", "dcp"), [(4, 4, 2), (8, 4, 4), (2, 4, 4)])
def test_context_parallelism_without_replicas_is_refused(heads: int, tp: int, dcp: int) -> None:
    with pytest.raises(
        LayoutError, match=rf"full.0 k: dcp={dcp}, but only dcp ranks .* at tp={tp}; dcp needs that many"
    ):
        engine(model_of(heads_of(heads)), tp, dcp=dcp)


def test_an_interleave_that_does_not_divide_the_block_is_refused() -> None:
    with pytest.raises(LayoutError, match="interleave 3 does not divide the 16 entries of a block"):
        engine(model_of(MLAAttentionSpec(2)), 2, dcp=2, interleave=3)


@pytest.mark.parametrize(
    "stated",
    [
        pytest.param({"heads": (Interval(0, 2), Interval(2, 4))}, id="misspelt axis"),
        pytest.param({"head": (Interval(0, 2), Interval(2, 3))}, id="another number of heads"),
        pytest.param({"dim": (Interval(0, 1), Interval(1, 2))}, id="an axis that is not split"),
    ],
)
def test_stated_intervals_that_no_array_uses_are_refused(stated: dict[str, tuple[Interval, ...]]) -> None:
    with pytest.raises(
        LayoutError, match=r"stated .*: the intervals end at \d, but no array is split so; the model has head of 4"
    ):
        engine(TWO, 2, stated=stated)


def test_an_opaque_dtype_does_not_replace_the_elements_of_an_entry() -> None:
    with pytest.raises(LayoutError, match="fp8_ds_mla is an opaque element of 656 bytes, latent has 576 elements"):
        engine(model_of(MLAAttentionSpec(576)), cache=CacheConfig(dtype="fp8_ds_mla"))


def test_a_cache_dtype_replaces_that_of_everything_with_a_token_axis() -> None:
    shards = engine(deepseek_v4(), cache=CacheConfig(dtype="fp8_e4m3", num_blocks=4)).rank().shards
    assert {shard.array.dtype.name for shard in shards if shard.tokens is not None} == {"fp8_e4m3"}
    assert "fp8_e4m3" not in {shard.array.dtype.name for shard in shards if shard.tokens is None}


def test_regions_of_all_ranks_are_apart() -> None:
    regions = [region for rank in engine(TWO, 4, pp=2).ranks for region in rank.regions]
    ordered = sorted(regions, key=lambda region: region.address)
    assert all(low.address + low.nbytes <= high.address for low, high in zip(ordered, ordered[1:], strict=False))


def test_a_stage_without_layers_has_no_memory() -> None:
    empty = engine(TWO, pp=2, stage_layers=(0, 2)).rank(pp=0)
    assert empty.regions == empty.shards == ()
