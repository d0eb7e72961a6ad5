from kvweave.core.interval import Interval
from kvweave.core.lanes import Span, plan_lanes
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

WHOLE = Span(0, 1)


def lanes_between(model, prefill, decode):
    return plan_lanes(plan_transfer(engine(model, **prefill), engine(model, **decode)))


def reads(lanes):
    """What is read, as (source tp, span, target tp, span)."""
    return {
        (band.source.tp, band.source_span, band.target.tp, band.target_span) for band in lanes.bands if not band.replica
    }


def test_arrays_split_alike_share_a_lane():
    model = model_of_groups(
        {"full": [heads_of(4)], "window.8": [SlidingWindowSpec(4, 6, 8)], "state": [mamba2_of(2, 8)]}
    )
    assert [lane.parts for lane in lanes_between(model, {}, {}).lanes] == [
        ("k", "v"),
        ("conv.b", "conv.c"),
        ("conv.x", "ssm"),
    ]


def test_heads_of_other_numbers_have_a_lane_of_their_own():
    model = model_of_groups({"full": [heads_of(1)], "window.8": [SlidingWindowSpec(8, 2, 8)]})
    assert [lane.key.units for lane in lanes_between(model, {}, {}).lanes] == [1, 8]


def test_a_piece_is_what_the_rank_holds():
    lanes = lanes_between(model_of(heads_of(8)), {"tp": 2}, {"tp": 4})
    assert [card.pieces[0].units for card in lanes.sources] == [Interval(0, 4), Interval(4, 8)]
    assert [card.pieces[0].units for card in lanes.targets] == [Interval(2 * rank, 2 * rank + 2) for rank in range(4)]


def test_bands_split_the_source_where_targets_are_more():
    found = reads(lanes_between(model_of(heads_of(4)), {"tp": 1}, {"tp": 2}))
    assert found == {(0, Span(0, 0.5), 0, WHOLE), (0, Span(0.5, 1), 1, WHOLE)}


def test_bands_split_the_target_by_turns_of_the_tokens():
    found = reads(lanes_between(model_of(MLAAttentionSpec(3)), {"tp": 2, "dcp": 2}, {}))
    assert found == {(0, WHOLE, 0, Span(0, 0.5)), (1, WHOLE, 0, Span(0.5, 1))}


def test_bands_split_the_target_by_stages():
    lanes = lanes_between(model_of(*[MLAAttentionSpec(3)] * 4), {"pp": 2}, {})
    assert [(band.source.pp, band.target_span) for band in lanes.bands] == [(0, Span(0, 0.5)), (1, Span(0.5, 1))]


def test_ranks_with_the_same_bytes_are_replicas():
    bands = lanes_between(model_of(MLAAttentionSpec(3)), {"tp": 3}, {}).bands
    assert [(band.source.tp, band.replica) for band in bands] == [(0, False), (1, True), (2, True)]


def test_groups_whose_layers_alternate_make_one_band():
    model = model_of_groups({"full": [heads_of(2)] * 3, "window.8": [SlidingWindowSpec(2, 2, 8)] * 3})
    assert len(lanes_between(model, {}, {}).bands) == 1


def test_only_planned_targets_are_shown():
    prefill, decode = engine(model_of(heads_of(4)), 2), engine(model_of(heads_of(4)), 4)
    lanes = plan_lanes(plan_transfer(prefill, decode, target=decode.rank(tp=3)))
    assert [card.rank for card in lanes.targets] == [RankCoordinates(tp=3)]


def test_an_array_that_one_engine_alone_deals_out_has_one_lane():
    models = [model_of(FullAttentionSpec(1, 2, dcp_sharded=dealt), MLAAttentionSpec(2)) for dealt in (True, False)]
    for pair in (models, models[::-1]):
        plan = plan_transfer(*(engine(model, 2, dcp=2) for model in pair))
        assert {(lane.parts, lane.key.dealt) for lane in plan_lanes(plan).lanes} == {
            (("k", "v"), True),
            (("latent",), True),
        }
