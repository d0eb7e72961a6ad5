"""The command runs seeds, fails with the replay line and a shrunk scenario, and replays one with its trace."""

from __future__ import annotations

import json

import pytest

from kvweave.testing.simulate import main


def test_seeds_that_hold_exit_with_zero_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "delivered" in printed
    assert "3 seeds, 60 requests" in printed
    assert "every rule held" in printed


def test_failing_seed_is_shrunk_and_printed_with_its_replay_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--jobs", "1", "--plant", "all-reads"]) == 1
    printed = capsys.readouterr().out
    assert "replay: python -m kvweave.testing.simulate --seed 0 --plant all-reads" in printed
    assert printed.count("RequestPlan(") == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_document_is_the_same_with_more_processes(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seeds", "25", "--requests", "5", "--jobs", jobs, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvweave.simulate/1"
    assert (document["seeds"], document["requests"], document["failures"]) == (25, 5, [])
    assert document["counts"]["offers"] > 0


def test_replay_shows_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "prefill 0.0 starts" in printed
    assert "every rule held" in printed


def test_replay_of_a_failing_seed_ends_with_the_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "0", "--plant", "all-reads", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["seed"] == 0
    assert "while" in document["violation"]
    assert document["trace"]
