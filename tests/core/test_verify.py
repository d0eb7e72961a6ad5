"""The proof must find every planted fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from kvweave.core.cache_config import CacheConfig, ConvOrder
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.model import ModelCache
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.read import Read
from kvweave.core.spec import MambaSpec, SlidingWindowSpec
from kvweave.errors import PlanError
from kvweave.testing.strategies import engine_pairs
from tests.core.engines import BFLOAT16, FLOAT32, engine, heads_of, mamba2_of, model_of, model_of_groups

MODEL = model_of(heads_of(4), heads_of(4))
RANK = RankCoordinates()


@settings(max_examples=60)
@given(pair=engine_pairs())
def test_every_right_plan_is_proved(pair: tuple[EngineLayout, EngineLayout]) -> None:
    assert plan_transfer(*pair).verify().problems == ()


def small_plan() -> TransferPlan:
    return plan_transfer(engine(MODEL, 2), engine(MODEL, 1, CacheConfig(24, "NHD", num_blocks=8)))


def altered(plan: TransferPlan, change: Callable[[Read], Read | None], which: int = 0) -> TransferPlan:
    """The plan with one read changed, or left out."""
    reads = list(plan.reads[RANK])
    changed = change(reads[which])
    reads[which : which + 1] = [] if changed is None else [changed]
    return replace(plan, reads={RANK: tuple(reads)})


def moved(column: np.ndarray, by: int) -> np.ndarray:
    return (column.astype(np.int64) + by).astype(np.uint64)


def of_source(read: Read, **change: object) -> Read:
    return replace(read, sources=tuple(replace(source, **change) for source in read.sources))


def other_source(read: Read) -> Read:
    """The same box, from the rank that holds the other heads."""
    other = small_plan().of(RANK)[1 if read.box[0].start == 0 else 0]
    return replace(read, sources=other.sources)


ALTERATIONS = {
    "a read left out": lambda read: None,
    "half a box": lambda read: replace(read, box=(Interval(0, 1), read.box[1])),
    "too large a box": lambda read: replace(read, box=(Interval(0, 3), read.box[1])),
    "a source element further": lambda read: of_source(read, addresses=moved(read.sources[0].addresses, 2)),
    "a target element further": lambda read: replace(
        read, target=replace(read.target, addresses=moved(read.target.addresses, 2))
    ),
    "layers exchanged": lambda read: of_source(read, addresses=read.sources[0].addresses[::-1].copy()),
    "heads of another rank": other_source,
    "a wider source stride": lambda read: of_source(
        read, geometry=replace(read.sources[0].geometry, entry_stride=read.sources[0].geometry.entry_stride + 2)
    ),
    "another dealing of tokens": lambda read: of_source(read, tokens=replace(read.sources[0].tokens, count=2)),
    "another block size": lambda read: of_source(
        read, geometry=replace(read.sources[0].geometry, block_entries=8, kernel_block_entries=8)
    ),
    "the wrong region": lambda read: of_source(read, regions=read.sources[0].regions[::-1].copy()),
    "outside its region": lambda read: of_source(read, addresses=moved(read.sources[0].addresses, 1 << 30)),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_altered_read_is_found(alteration: str) -> None:
    report = altered(small_plan(), ALTERATIONS[alteration]).verify()
    assert not report.ok and str(report).startswith("WRONG")


def test_a_read_made_twice_is_found() -> None:
    plan = small_plan()
    doubled = replace(plan, reads={RANK: (*plan.of(RANK), plan.of(RANK)[0])})
    assert any("write over another row" in problem for problem in doubled.verify().problems)


def test_a_target_whose_arrays_overlap_in_memory_is_found() -> None:
    layout = engine(MODEL)
    keys, values = layout.rank().shards
    colliding = replace(layout.rank(), shards=(keys, replace(values, places=keys.places)))
    plan = plan_transfer(layout, replace(layout, ranks=(colliding,)))
    assert any("overlap another one in memory" in problem for problem in plan.verify().problems)


@pytest.mark.parametrize("model", [
    pytest.param(model_of(mamba2_of(2, 4), group="state"), id="mamba2"),
    pytest.param(model_of(MambaSpec.mamba1(8, 3, 4, BFLOAT16, FLOAT32), group="state"), id="mamba1"),
])  # fmt: skip
@pytest.mark.parametrize("orders", [(a, b) for a in ConvOrder for b in ConvOrder], ids=" to ".join)
def test_mixed_conv_orders_are_proved(model: ModelCache, orders: tuple[str, str]) -> None:
    """Rows of one element on one side, whole channels on the other."""
    sides = [
        engine(model, tp, CacheConfig(num_blocks=4, conv_order=order)) for tp, order in zip((2, 4), orders, strict=True)
    ]
    assert plan_transfer(*sides).verify().problems == ()


def test_a_stage_without_layers_is_proved() -> None:
    whole, staged = engine(MODEL), engine(MODEL, pp=2, stage_layers=(0, 2))
    assert plan_transfer(whole, staged).verify().ok and plan_transfer(staged, whole).verify().ok


def test_a_model_that_caches_nothing_is_proved() -> None:
    layout = engine(ModelCache("empty", 1, ()))
    assert plan_transfer(layout, layout).verify().ok


@pytest.mark.parametrize("num_tokens", [0, 1, 17, 60])
def test_the_length_of_the_sample_may_be_stated(num_tokens: int) -> None:
    model = model_of_groups({"window": [SlidingWindowSpec(2, 2, 5)], "full": [heads_of(2)]})
    report = plan_transfer(engine(model), engine(model)).verify(num_tokens)
    assert report.ok and (report.nbytes > 0) is (num_tokens > 0)


@pytest.mark.parametrize("num_tokens", [-1, 1.5, math.nan, "9"], ids=repr)
def test_a_length_that_is_none_is_refused(num_tokens: object) -> None:
    with pytest.raises(PlanError, match=r"num_tokens: .*; it must be a whole number of at least 0"):
        small_plan().verify(num_tokens)


def test_a_sample_is_never_longer_than_the_pools() -> None:
    longest = small_plan().verify(10**9)
    assert longest.ok and 20 < longest.tokens < 10**9


def test_a_report_says_what_was_looked_at() -> None:
    report = small_plan().verify(20)
    assert (report.tokens, report.ranks, report.requests) == (20, 1, 2)
    assert str(report).startswith("proved: 1 ranks, 2 requests of up to 20 tokens, ") and report.elements > 0
