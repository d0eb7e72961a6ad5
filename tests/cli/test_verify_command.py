import pytest

from kvweave.models import presets


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v4-flash", "gemma-3-270m", "kimi-linear-48b-a3b"])
def test_a_real_shape_is_proved(run_document, model):
    code, document = run_document("verify", "--model", model, "--prefill", "tp=16", "--decode", "tp=4,dp=8")
    (proof,) = document["proofs"]
    assert (code, document["schema"], document["ok"]) == (0, "kvweave.verify/1", True)
    assert (proof["result"], proof["ranks"], proof["problems"]) == ("proved", 4, [])
    assert proof["bytes"] > 0


def test_the_report_is_one_line(run):
    result = run("verify", "-m", "smollm2-135m", "-p", "tp=3,block=16", "-d", "tp=1,block=64,layout=NHD")
    assert result.exit_code == 0
    assert result.stdout.startswith("proved: 1 ranks, 2 requests")


def test_blocks_far_apart_in_size_still_get_whole_blocks(run_document):
    _, document = run_document("verify", "-m", "smollm2-135m", "-p", "block=1", "-d", "block=2112")
    assert document["proofs"][0]["bytes"] > 2 * 2112 * 30 * 3 * 64


def test_a_longer_sample_makes_windows_move_on(run_document):
    _, document = run_document("verify", "-m", "gpt-oss-20b", "-p", "tp=2,block=32", "-d", "tp=4", "--tokens", "600")
    assert document["ok"]


def test_all_proves_every_preset_and_names_those_that_cannot_have_the_sizes(run):
    result = run("verify", "--model", "all", "--prefill", "tp=4", "--decode", "tp=2")
    assert result.exit_code == 0
    assert [name for name in presets() if f"{name} " not in result.stdout] == []
    assert f"{len(presets()) - 1} proved, 1 refused" in result.stdout


def test_sizes_that_no_engine_could_have_are_a_wrong_question(run):
    result = run("verify", "-m", "smollm2-135m", "-p", "tp=2", "-d", "tp=1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "3 units over tp=2" in result.stderr


def test_all_with_sizes_that_no_model_could_have_is_a_wrong_question(run_document):
    code, document = run_document("verify", "-m", "all", "-p", "pp=4000", "-d", "tp=1")
    assert (code, document["ok"]) == (2, False)
    assert {proof["result"] for proof in document["proofs"]} == {"refused"}


def test_a_pair_that_does_not_fit_is_answered_with_no(run):
    result = run("verify", "-m", "llama-3.1-8b", "-p", "dtype=float16", "-d", "tp=1")
    assert result.exit_code == 1
    assert "same cache dtype" in result.stderr


def test_an_unknown_model_is_a_wrong_question(run):
    assert run("verify", "-m", "nothing", "-p", "tp=1", "-d", "tp=1").exit_code == 2
