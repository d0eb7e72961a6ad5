"""``kvweave demo``: what it refuses before anything starts, what it shows, and its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("transformers", reason="the demonstration needs the extra hf")
pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.cli import demo_command
from kvweave.engines.hf import demo
from kvweave.engines.hf.sweep import SweepResult
from tests.engines.hf.planted import FaultyEngine

PAIR = ("--model", "tiny:llama", "--prefill", "tp=4", "--decode", "tp=2,block=64")
SHOWN = demo.Demonstration(
    model="tiny:llama",
    prompt_tokens=9,
    answer="blue [sky]\x1b[31m",
    tokens=(1, 2, 3),
    expected=(1, 2, 3),
    contacts=(demo.Contact("tp0", "full", ("tp0", "tp1")),),
    nbytes=8192,
    rows=12,
    prefill_seconds=0.02,
    transfer_seconds={"peer": 0.3, "claim": 0.001, "read": 0.004, "grant": 0.0005},
    decode_seconds=0.2,
    blocks_left=0,
)
WRONG = replace(SHOWN, tokens=(1, 7, 3))


class WrongEngine(FaultyEngine):
    fault = "other prompt"


@pytest.fixture(scope="module", autouse=True)
def models_of_this_run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVWEAVE_CACHE", str(tmp_path_factory.mktemp("models")))
        yield


def show(shown, capsys):
    demo_command._show(shown, "tp=4", "tp=2")
    return " ".join(capsys.readouterr().out.split())


def test_what_moved_early_is_told_apart(capsys):
    assert "8 KiB of 8 prompt tokens in 12 pieces over NIXL, 6 KiB of it while they" in show(
        replace(SHOWN, early_bytes=6144), capsys
    )
    assert "while they" not in show(SHOWN, capsys)
    assert demo_command._document(replace(SHOWN, early_bytes=6144))["early_bytes"] == 6144


def test_the_help_names_its_options_examples_and_keys(run):
    shown = run("demo", "--help").stdout
    assert [
        word for word in ("--model", "--sweep", "tiny:FAMILY", "kvweave demo --sweep", "Keys of") if word not in shown
    ] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "llama-3.1-8b"), ["'llama-3.1-8b'", "a preset has no weights"]),
        (("--model", "tiny:llama-9"), ["'llama-9'", "use one of llama,"]),
        ((*PAIR[:2], "--prefill", "tp=3"), ["prefill:", "4 units over tp=3"]),
        ((*PAIR[:2], "--prefill", "tp=4", "--decode", "tp=2,blok=3"), ["--decode", "blok:", "mean block?"]),
        ((*PAIR, "--prefill", "tp=4,dp=2"), ["--prefill", "dp: 2", "start one engine per"]),
        ((*PAIR, "--prefill", "tp=4,dtype=float16"), ["--prefill", "dtype: float16", "float32"]),
        ((*PAIR, "--decode", "tp=2,memory=VRAM"), ["--decode", "memory: VRAM", "DRAM"]),
        ((*PAIR, "--decode", "tp=2,blocks=3"), ["--decode", "blocks:", "leave it out"]),
        ((*PAIR, "--decode", "tp=2,speculative_tokens=3"), ["--decode", "speculative_tokens:", "leave it out"]),
        ((*PAIR, "--tokens", "0"), ["--tokens", "'0'", "from 1 to"]),
        ((*PAIR, "--tokens", "nan"), ["--tokens", "'nan'", "from 1 to"]),
        (("--family", "llama"), ["--family", "add --sweep"]),
        (("--sweep", "--prompt", "why?"), ["--prompt", "--sweep", "leave it out"]),
        (("--sweep", "--family", "llama-9"), ["--family", "'llama-9'", "use one of llama,"]),
    ],
    ids=[
        "a preset", "family", "sizes", "misspelt", "data parallel", "dtype", "memory", "blocks", "speculation",
        "no tokens", "nan tokens", "family alone", "sweep and prompt", "family of a sweep",
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_understood_names_what_is_wrong(run, arguments, named):
    result = run("demo", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert [word for word in named if word not in result.stderr] == []


def test_a_run_shows_answer_mapping_bytes_times_and_verdict(capsys):
    shown = show(SHOWN, capsys)
    wanted = (
        "tiny:llama answers",
        "tp0, tp1",
        "moved 8 KiB of 8 prompt tokens in 12 pieces over NIXL",
        "handshake 300 ms",
        "read 4 ms",
        "decode 200 ms",
        "all 3 tokens equal those of one engine",
    )
    assert [words for words in wanted if words not in shown] == []


def test_an_answer_cannot_steer_the_terminal(capsys):
    assert "blue [sky]\N{MIDDLE DOT}[31m" in show(SHOWN, capsys)


def test_wrong_tokens_are_shown_with_their_place(capsys):
    assert "WRONG: token 1 is (7,), one engine gives (2,) (3 and 3 tokens in all)" in show(WRONG, capsys)


def test_blocks_that_were_not_freed_are_shown(capsys):
    assert "WRONG: 2 blocks were not freed" in show(replace(SHOWN, blocks_left=2), capsys)


def test_a_request_without_transfer_says_so(capsys):
    shown = show(replace(SHOWN, contacts=(), nbytes=0, rows=0, transfer_seconds={}), capsys)
    assert "nothing was moved" in shown
    assert "handshake" not in shown


def test_the_document_has_what_the_table_shows():
    document = demo_command._document(WRONG)
    assert (document["schema"], document["ok"], document["first_difference"]) == ("kvweave.demo/1", False, 1)
    assert document["mapping"] == [{"target": "tp0", "group": "full", "sources": ["tp0", "tp1"]}]
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize(
    ("result", "verdict", "why"),
    [
        (SweepResult("llama", "a pair", SHOWN), "equal", ""),
        (SweepResult("llama", "a pair", WRONG), "WRONG", "WRONG: token 1"),
        (SweepResult("llama", "a pair", replace(SHOWN, blocks_left=1)), "WRONG", "1 blocks were not freed"),
        (SweepResult("llama", "a pair", impossible="3 heads"), "no such engine", "3 heads"),
        (SweepResult("llama", "a pair", failed="peer lost"), "FAILED", "peer lost"),
    ],
    ids=["equal", "other tokens", "blocks left", "impossible", "failed"],
)
def test_a_sweep_says_of_each_run_what_came_out(result, verdict, why, capsys):
    demo_command._show_sweep([result])
    shown = capsys.readouterr().out
    assert f"1 {verdict}" in shown
    assert why in shown
    assert demo_command._sweep_document(result)["result"] == verdict


def test_equal_tokens_exit_with_zero_and_steps_go_to_stderr(run):
    result = run("demo", *PAIR, "--tokens", "4", "--json")
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (0, True)
    assert "opening the engines" in result.stderr


@pytest.mark.parametrize(
    "arguments", [(*PAIR, "--tokens", "4"), ("--sweep", "--family", "llama")], ids=["one run", "sweep"]
)
def test_wrong_tokens_exit_with_one(run, monkeypatch, arguments):
    monkeypatch.setattr(demo, "Stage", partial(demo.Stage, start=WrongEngine))
    result = run("demo", *arguments)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
