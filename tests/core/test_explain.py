import pytest

from kvweave.core.explain import describe_ranks, plan_rows, plan_totals
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import ChunkedLocalAttentionSpec, FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups


def plan_between(model, prefill, decode):
    return plan_transfer(engine(model, **prefill), engine(model, **decode))


def rows_between(model, prefill, decode):
    return list(plan_rows(plan_between(model, prefill, decode)))


def test_equal_parts_and_layers_share_a_row():
    (row,) = rows_between(model_of(heads_of(4), heads_of(4)), {}, {})
    assert (row.parts, row.module, row.box) == (("k", "v"), "full.0, full.1", "all")


def test_k_and_v_of_different_size_have_rows_of_their_own():
    rows = rows_between(model_of(FullAttentionSpec(4, 8, head_size_v=4)), {}, {})
    assert [row.parts for row in rows] == [("k",), ("v",)]


def test_the_box_names_only_axes_that_are_cut():
    boxes = {row.box for row in rows_between(model_of(heads_of(4, 8)), {"tp": 2}, {"tp": 4}) if row.target.tp == 1}
    assert boxes == {"head [1, 2) of 4"}


def test_replicas_are_the_sources_that_could_serve_as_well():
    (row,) = rows_between(model_of(MLAAttentionSpec(3)), {"tp": 3}, {})
    assert (row.source, row.replicas) == (RankCoordinates(tp=0), (RankCoordinates(tp=1), RankCoordinates(tp=2)))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (heads_of(2), "all"),
        (SlidingWindowSpec(2, 2, 8), "all, window 8"),
        (ChunkedLocalAttentionSpec(2, 2, 8), "all, chunk 8"),
        (MLAAttentionSpec(3, tokens_per_state=4), "all, 1 entry per 4"),
        (mamba2_of(1, 2), "state"),
    ],
    ids=["full", "window", "chunk", "compressed", "state"],
)
def test_tokens_say_which_and_how(spec, text):
    assert {row.tokens for row in rows_between(model_of(spec), {}, {})} == {text}


def test_dcp_rows_say_which_turn_they_read():
    rows = rows_between(model_of(MLAAttentionSpec(3)), {"tp": 2, "dcp": 2, "interleave": 4}, {})
    assert [row.tokens for row in rows] == ["4 of every 8 from 0", "4 of every 8 from 4"]


def test_totals_of_rows_are_the_model_s_bytes_per_token():
    model = model_of_groups({"full": [heads_of(4)] * 2, "rate.4": [MLAAttentionSpec(8, tokens_per_state=4)]})
    totals = plan_totals(plan_between(model, {"tp": 4, "dcp": 1}, {}))
    assert totals.bytes_per_token == (model.bytes_per_token(), model.bytes_per_token())


def test_totals_under_dcp_are_a_share_of_the_tokens():
    model = model_of(MLAAttentionSpec(8))
    totals = plan_totals(plan_between(model, {"tp": 4, "dcp": 4}, {"tp": 2, "dcp": 2}))
    assert totals.bytes_per_token == (model.bytes_per_token() / 2, model.bytes_per_token() / 2)


def test_totals_of_states_are_per_request():
    model = model_of(mamba2_of(2, 4), group="state")
    totals = plan_totals(plan_between(model, {"tp": 2}, {}))
    assert totals.bytes_per_request == (model.bytes_per_request(), model.bytes_per_request())
    assert totals.bytes_per_token == (0.0, 0.0)


def test_sources_are_counted_once_and_handshakes_per_pair_of_engines():
    totals = plan_totals(plan_between(model_of(heads_of(8)), {"tp": 16, "dp": 2}, {"tp": 4, "dp": 8}))
    assert (totals.sources, totals.prefill_ranks, totals.readers, totals.handshakes) == (8, 16, 8, 16)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([RankCoordinates(tp=1)], "tp1"),
        ([RankCoordinates(tp=tp) for tp in (1, 2, 5)], "tp1-2,5"),
        ([RankCoordinates(tp=0), RankCoordinates(1, 0, 2), RankCoordinates(1, 0, 3)], "tp0, pp1.pcp0.tp2-3"),
    ],
    ids=["one", "folded", "stages"],
)
def test_ranks_fold_by_stage(ranks, text):
    assert describe_ranks(ranks) == text
