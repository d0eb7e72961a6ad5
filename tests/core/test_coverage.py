"""An engine that does not hold its whole model is never filled as if it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from kvweave.core.array import DType, TokenAxis, WindowReach
from kvweave.core.coverage import unheld
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout, RankLayout, Shard
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec
from kvweave.core.tokens import TokenShare
from kvweave.errors import IncompatibleLayouts, LayoutError
from kvweave.testing.strategies import engine_pairs
from tests.core.engines import engine, faults, heads_of, mamba2_of, model_of, model_of_groups, stated_heads

MODEL = model_of(heads_of(4), heads_of(4))


def with_shards(layout: EngineLayout, change: Callable[[RankLayout], tuple[Shard, ...]]) -> EngineLayout:
    return replace(layout, ranks=tuple(replace(rank, shards=change(rank)) for rank in layout.ranks))


@settings(max_examples=40)
@given(pair=engine_pairs())
def test_every_engine_that_was_built_holds_its_model(pair: tuple[EngineLayout, EngineLayout]) -> None:
    assert [list(unheld(layout)) for layout in pair] == [[], []]


@pytest.mark.parametrize(
    ("change", "field", "box"),
    [
        (lambda rank: rank.shards[:1], "full.0 v", "head [0, 4), dim [0, 2)"),
        (
            lambda rank: tuple(replace(shard, places=shard.places[:1]) for shard in rank.shards),
            "full.1 k", "head [0, 4), dim [0, 2)",
        ),
        (
            lambda rank: tuple(replace(shard, box=(Interval(0, 3), shard.box[1])) for shard in rank.shards),
            "full.0 k", "head [3, 4), dim [0, 2)",
        ),
        (
            lambda rank: tuple(replace(shard, tokens=TokenShare(2, 1)) for shard in rank.shards),
            "full.0 k", "head [0, 4), dim [0, 2)",
        ),
    ],
    ids=["a part", "a layer", "a head", "half of the tokens"],
)  # fmt: skip
def test_a_decode_engine_that_lacks_something_is_refused(
    change: Callable[[RankLayout], tuple[Shard, ...]], field: str, box: str
) -> None:
    with pytest.raises(IncompatibleLayouts) as refused:
        plan_transfer(engine(MODEL, 2), with_shards(engine(MODEL), change))
    first = refused.value.problems[0]
    assert (first.field, first.source, first.target) == (field, box, "no rank that holds it")


def test_ranks_that_all_describe_the_first_half_are_refused() -> None:
    layout = engine(MODEL, 2)
    with pytest.raises(IncompatibleLayouts, match=r"head \[2, 4\).*describe every decode rank"):
        plan_transfer(layout, with_shards(layout, lambda rank: layout.ranks[0].shards))


def test_stated_intervals_may_overlap_and_come_in_any_order() -> None:
    overlapping = {"head": (Interval(1, 4), Interval(3, 5), Interval(0, 3))}
    model = model_of(heads_of(5))
    pair = engine(model, 3, stated=overlapping), engine(model, 2, stated=stated_heads(5, 2))
    assert [list(unheld(layout)) for layout in pair] == [[], []]
    assert faults(*pair) == faults(*reversed(pair)) == []


@pytest.mark.parametrize("odd_rank", [0, 1])
@pytest.mark.parametrize(
    "other", [{"dtype": DType.of("float16")}, {"tokens": TokenAxis(reach=WindowReach(5))}], ids=["dtype", "window"]
)
def test_ranks_that_describe_an_array_differently_are_refused(odd_rank: int, other: dict[str, object]) -> None:
    ranks = list(engine(MODEL, 2).ranks)
    shards = [replace(shard, array=replace(shard.array, **other)) for shard in ranks[odd_rank].shards]
    ranks[odd_rank] = replace(ranks[odd_rank], shards=tuple(shards))
    with pytest.raises(LayoutError, match=r"rank tp1: full\.\d k is .*, on another rank .*; describe an array alike"):
        replace(engine(MODEL, 2), ranks=tuple(ranks))


def test_layers_that_the_model_does_not_know_are_refused() -> None:
    for other in (model_of(heads_of(4)), model_of(heads_of(4), FullAttentionSpec(4, 3))):
        with pytest.raises(LayoutError, match=r"rank tp0: full\.1 k .* is no array of model test model"):
            replace(engine(MODEL), model=other)


def test_a_stage_may_hold_nothing() -> None:
    model = model_of_groups({"full": [heads_of(4)], "state": [mamba2_of(1, 4)]})
    assert list(unheld(engine(model, 2, pp=2, stage_layers=(0, 1)))) == []
