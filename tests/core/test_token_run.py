import pytest

from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec, MLAAttentionSpec
from kvweave.core.token_run import TokenRun, read_runs, share_run
from kvweave.core.tokens import TokenShare
from tests.core.engines import engine, heads_of, mamba2_of, model_of


def runs_between(model, prefill, decode):
    plan = plan_transfer(engine(model, **prefill), engine(model, **decode))
    return {(str(target), run) for target, reads in plan.reads.items() for read in reads for run in read_runs(read)}


def test_all_tokens_are_one_progression_of_step_one():
    assert share_run(TokenShare()) == TokenRun(0, 1, 1)


def test_a_share_starts_at_its_turn():
    assert share_run(TokenShare(4, 2, 16)) == TokenRun(32, 16, 64)


def test_a_share_of_compressed_entries_counts_in_tokens():
    assert share_run(TokenShare(2, 1, 3), tokens_per_entry=4) == TokenRun(12, 12, 24)


def test_share_says_which_part_of_the_positions_it_has():
    assert TokenRun(16, 16, 64).share == 0.25


def test_dcp_4_to_dcp_2_reads_every_fourth_token():
    found = runs_between(model_of(MLAAttentionSpec(3)), {"tp": 4, "dcp": 4}, {"tp": 2, "dcp": 2})
    assert found == {
        ("tp0", TokenRun(0, 1, 4)),
        ("tp0", TokenRun(2, 1, 4)),
        ("tp1", TokenRun(1, 1, 4)),
        ("tp1", TokenRun(3, 1, 4)),
    }


def test_shares_of_different_interleave_need_several_progressions():
    model = model_of(MLAAttentionSpec(3))
    found = runs_between(model, {"tp": 2, "dcp": 2, "interleave": 4}, {"tp": 2, "dcp": 2, "interleave": 1})
    assert {run for target, run in found if target == "tp0"} == {TokenRun(first, 1, 8) for first in (0, 2, 4, 6)}


def test_compressed_entries_dealt_out_by_dcp_count_in_tokens():
    model = model_of(MLAAttentionSpec(3, tokens_per_state=4, dcp_sharded=True))
    assert runs_between(model, {"tp": 2, "dcp": 2, "interleave": 4}, {}) == {
        ("tp0", TokenRun(0, 4, 8)),
        ("tp0", TokenRun(4, 4, 8)),
    }


@pytest.mark.parametrize("spec", [heads_of(4), FullAttentionSpec(4, 2, dcp_sharded=False)], ids=["heads", "not dealt"])
def test_without_dcp_a_read_covers_all_tokens(spec):
    assert {run for _, run in runs_between(model_of(spec), {"tp": 2}, {"tp": 4})} == {TokenRun()}


def test_a_state_has_no_progression():
    assert runs_between(model_of(mamba2_of(2, 4)), {"tp": 2}, {"tp": 1}) == set()
