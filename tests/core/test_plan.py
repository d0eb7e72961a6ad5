from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec, MambaSpec, MLAAttentionSpec
from kvweave.errors import IncompatibleLayouts, PlanError
from kvweave.testing.strategies import engine_pairs
from tests.core.engines import BFLOAT16, FLOAT32, engine, faults, heads_of, model_of, model_of_groups, stated_heads

MODEL = model_of(heads_of(4), heads_of(4), MLAAttentionSpec(3))


def volume(box: tuple[Interval, ...]) -> int:
    product = 1
    for interval in box:
        product *= len(interval)
    return product


@settings(max_examples=60)
@given(pair=engine_pairs())
def test_the_reads_of_a_rank_are_exactly_its_boxes(pair: tuple[EngineLayout, EngineLayout]) -> None:
    """Without context parallelism each element is in one read; with it, in one read of each share."""
    prefill, decode = pair
    plan = plan_transfer(prefill, decode)
    for rank in decode.ranks:
        for shard in rank.shards:
            for place in shard.places:
                mine = [r for r in plan.of(rank) if r.array.part == shard.array.part and place.layer in r.layers]
                assert all(outer.contains(inner) for r in mine for outer, inner in zip(shard.box, r.box, strict=True))
                shares = {(r.box, r.sources[0].tokens): volume(r.box) for r in mine}
                boxes = {r.box: volume(r.box) for r in mine}
                assert len(shares) == len(mine) and sum(boxes.values()) == volume(shard.box)


@settings(max_examples=60)
@given(pair=engine_pairs())
def test_all_sources_of_a_read_hold_its_box(pair: tuple[EngineLayout, EngineLayout]) -> None:
    plan = plan_transfer(*pair)
    for reads in plan.reads.values():
        for read in reads:
            for source in read.sources:
                rank = plan.prefill.at(source.coordinates)
                held = [s for s in rank.shards if s.array.part == read.array.part and set(read.layers) <= s.layers]
                assert all(outer.contains(inner) for s in held for outer, inner in zip(s.box, read.box, strict=True))
                assert held


def test_a_plan_for_one_target_holds_that_rank_alone() -> None:
    prefill, decode = engine(MODEL, 4), engine(MODEL, 2)
    whole, single = plan_transfer(prefill, decode), plan_transfer(prefill, decode, decode.rank(tp=1))
    assert list(single.reads) == [RankCoordinates(tp=1)]
    chosen, expected = (plan.sources(decode.rank(tp=1), salt=3) for plan in (single, whole))
    assert chosen == expected
    with pytest.raises(PlanError, match="target: tp0 is not in this plan, which has tp1; plan it or name one of these"):
        single.of(decode.rank())


def test_sources_are_named_per_group_of_the_target() -> None:
    prefill = engine(model_of_groups({"all": [heads_of(4), MLAAttentionSpec(3)]}), 4)
    decode = engine(model_of_groups({"all": [heads_of(4), MLAAttentionSpec(3)]}), 2)
    assert set(plan_transfer(prefill, decode).sources(decode.rank())) == {"all"}


def test_layers_of_one_geometry_share_their_reads() -> None:
    small, large = (model_of(*[heads_of(4)] * layers) for layers in (2, 60))
    counts = [len(plan_transfer(engine(m, 4), engine(m, 2)).of(RankCoordinates())) for m in (small, large)]
    assert counts[0] == counts[1]


def test_parts_of_one_name_and_different_axes_do_not_meet() -> None:
    """Mamba1 and Mamba2 both call their state ssm, over other axes."""
    model = model_of(
        MambaSpec.mamba1(4, 2, 3, BFLOAT16, FLOAT32), MambaSpec.mamba2(4, 1, 2, 2, 3, BFLOAT16, FLOAT32), group="state"
    )
    assert faults(engine(model, 2), engine(model, 4)) == []


def test_what_no_source_holds_is_refused_with_layer_and_box() -> None:
    whole = engine(model_of(heads_of(3)), 3)
    without = [replace(rank, shards=rank.shards[:1], regions=rank.regions) for rank in whole.ranks[2:]]
    lacking = replace(whole, ranks=(*whole.ranks[:2], *without))
    with pytest.raises(IncompatibleLayouts, match=r"full.0 v: source has no rank that holds it, .*head \[2, 3\), dim"):
        plan_transfer(lacking, engine(model_of(heads_of(3))))


@pytest.mark.parametrize("tp", [2, 4, 5])
def test_stated_intervals_need_not_be_those_of_the_other_side(tp: int) -> None:
    model = model_of(heads_of(7))
    assert faults(engine(model, tp, stated=stated_heads(7, tp)), engine(model, 3, stated=stated_heads(7, 3))) == []


def test_shares_of_tokens_that_miss_some_are_refused() -> None:
    model = model_of(FullAttentionSpec(1, 2))
    dealt = engine(model, 2, dcp=2)
    same = [replace(rank, shards=dealt.ranks[0].shards) for rank in dealt.ranks]
    with pytest.raises(IncompatibleLayouts, match=r"full\.0 k: source has no rank that holds it"):
        plan_transfer(replace(dealt, ranks=tuple(same)), engine(model))


def test_groups_may_be_named_otherwise_on_either_side() -> None:
    one, other = (model_of_groups({name: [heads_of(4)]}) for name in ("full", "attention"))
    renamed = replace(other, groups=tuple(replace(group, layers=one.groups[0].layers) for group in other.groups))
    prefill, decode = engine(one), engine(renamed)
    rows = plan_transfer(prefill, decode).descriptors(RankCoordinates(), {"full": [1]}, {"attention": [2]}, 9)
    assert rows.total_bytes == 9 * 4 * 2 * 2 * 2


def test_plans_and_layouts_fit_a_log_line() -> None:
    layout = engine(model_of(MLAAttentionSpec(64)), tp=8)
    assert all(len(repr(value)) < 120 for value in (plan_transfer(layout, layout), layout, layout.rank()))


def test_sources_that_cut_a_box_into_countless_pieces_are_refused() -> None:
    source = engine(model_of(heads_of(64, 128)), tp=64)
    cut = [
        replace(rank, shards=tuple(replace(s, box=(s.box[0], Interval(n, n + 1))) for s in rank.shards))
        for n, rank in enumerate(source.ranks)
    ]
    with pytest.raises(IncompatibleLayouts, match="cut it into 4160 pieces"):
        plan_transfer(replace(source, ranks=tuple(cut)), engine(model_of(heads_of(64, 128))))
