import re

import pytest

PAIR = ("--model", "llama-3.1-8b", "--prefill", "tp=4,block=16,layout=HND", "--decode", "tp=2,block=128,layout=NHD")


def test_the_table_says_who_reads_what_from_whom(run):
    result = run("plan", *PAIR)
    assert result.exit_code == 0
    rows = [line.split("  ") for line in result.stdout.splitlines() if "self_attn k, v" in line]
    assert len(rows) == 4
    assert "head [2, 4) of 8" in result.stdout
    assert "0-31" in result.stdout


def test_the_header_has_the_totals(run):
    header = run("plan", *PAIR).stdout.split("decode  layers")[0]
    assert "64 KiB per token" in header
    assert "4 of 4 prefill ranks" in header
    assert "handshakes: 1." in header


def test_data_parallel_engines_multiply_the_handshakes(run):
    result = run("plan", "--model", "deepseek-v3", "--prefill", "tp=16", "--decode", "tp=4,dp=8")
    assert "handshakes: 8 (1 x 8 engines)" in result.stdout
    assert "tp0 (tp1-15)" in result.stdout


def test_many_targets_are_folded(run):
    result = run("plan", "--model", "deepseek-v3", "--prefill", "tp=8", "--decode", "tp=32")
    assert "and 16 more decode ranks" in result.stdout


def test_one_target_is_enough(run_document):
    code, document = run_document("plan", *PAIR, "--target", "tp=1")
    assert code == 0
    assert [rank["target"]["tp"] for rank in document["ranks"]] == [1]


def test_a_target_that_the_engine_does_not_have_is_a_wrong_question(run):
    result = run("plan", *PAIR, "--target", "tp=2")
    assert result.exit_code == 2
    assert "rank tp2" in result.stderr
    assert "tp=2" in result.stderr


def test_the_document_is_the_schema(run_document):
    code, document = run_document("plan", *PAIR)
    assert (code, document["schema"]) == (0, "kvweave.plan/1")
    read = document["ranks"][1]["reads"][0]
    assert read["part"] == "k"
    assert len(read["layers"]) == 32
    assert (read["source"]["tp"], read["box"]["head"], read["bytes_per_token"]) == (2, [4, 6], 512)


def test_tokens_add_the_cost_for_blocks_in_order_and_scattered(run):
    lines = [line for line in run("plan", *PAIR, "--tokens", "100000").stdout.splitlines() if "100,000 tokens" in line]
    rows = [int(re.search(r"in ([\d,]+) rows", line)[1].replace(",", "")) for line in lines]
    assert len(rows) == 2
    assert rows[0] <= rows[1]


def test_the_cost_is_in_the_document(run_document):
    cost = run_document("plan", *PAIR, "--tokens", "500")[1]["cost"]
    assert cost["tokens"] == 500
    assert cost["blocks"]["in_order"]["bytes"] == cost["blocks"]["scattered"]["bytes"] == 500 * 131_072


def test_a_request_longer_than_the_stated_blocks_is_answered_with_no(run):
    result = run("plan", "-m", "llama-3.1-8b", "-p", "tp=1,blocks=2", "-d", "tp=1", "--tokens", "100")
    assert result.exit_code == 1
    assert "blocks hold 32" in result.stderr


def test_svg_writes_a_picture_beside_the_table(run, tmp_path):
    path = tmp_path / "plan.svg"
    result = run("plan", *PAIR, "--svg", str(path))
    assert "self_attn" in result.stdout
    assert path.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("file", "reason"), [("plan.png", "does not end in .svg"), ("missing/plan.svg", "cannot be written")]
)
def test_a_picture_that_cannot_be_written_is_refused_and_nothing_printed(run, tmp_path, file, reason):
    result = run("plan", *PAIR, "--svg", str(tmp_path / file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("-m", "no-such-model", "-p", "tp=1", "-d", "tp=1"), ["no-such-model", "kvweave models"]),
        (("-m", "smollm2-135m", "-p", "tp=2", "-d", "tp=1"), ["--prefill", "3", "tp=2", "stated"]),
        (("-m", "llama-3.1-8b", "-p", "tp=nan", "-d", "tp=1"), ["--prefill", "tp", "'nan'"]),
        (("-m", "llama-3.1-8b", "-p", "tp=1", "-d", "tp=-3"), ["--decode", "tp", "-3", "between"]),
        (("-m", "llama-3.1-8b", "-p", "tp=1", "-d", "blok=16"), ["--decode", "blok", "block"]),
        (("-m", "llama-3.1-8b", "-p", "tp=1", "-d", "pp=33"), ["--decode", "33", "32"]),
        (("-m", "llama-3.1-8b", "-p", "tp=1", "-d", "tp=1", "--tokens", "nan"), ["--tokens", "nan"]),
        (("-m", "llama-3.1-8b", "-p", "tp=1", "-d", "tp=1", "--tokens", "-1"), ["--tokens", "-1"]),
        (("-m", "llama-3.1-8b", "-p", "tp=1"), ["--decode"]),
    ],
    ids=["model", "sizes", "nan", "negative", "misspelt", "stages", "nan tokens", "negative tokens", "missing"],
)
def test_a_question_that_cannot_be_understood_names_what_is_wrong(run, run_document, arguments, named):
    result = run("plan", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert [word for word in named if word not in result.stderr] == []
    code, document = run_document("plan", *arguments)
    assert (code, document["schema"], document["exit_code"]) == (2, "kvweave.error/1", 2)


def test_engines_that_do_not_fit_are_answered_with_no(run_document):
    code, document = run_document("plan", "-m", "llama-3.1-8b", "-p", "dtype=float16", "-d", "dtype=fp8_e4m3")
    assert code == 1
    assert document["error"]["problems"][0]["field"].endswith("dtype")
