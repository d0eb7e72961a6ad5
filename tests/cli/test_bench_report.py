from __future__ import annotations

import pytest

from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.cli.bench_report import cells, show_lines, summary

VALUES = (Value.of("kvweave", "ms", [2.0]), Value.of("vLLM's functions", "ms", [4.0]))
GOOD = Line("cost", "cost of a request", VALUES, "time by theirs", 0.5, Limit(Bound.BELOW, 1))
BAD = Line("tail", "latency", (), "p99 by the median", 3.0, Limit(Bound.AT_MOST, 2), note="not [here]")
PLAIN = Line("more", "more", VALUES[:1])


def test_a_line_says_what_its_ratio_is_of() -> None:
    assert cells(GOOD) == (
        "cost of a request", "2 ms kvweave", "4 ms vLLM's functions", "0.50", "time by theirs", "below 1", "holds",
    )  # fmt: skip
    assert cells(BAD)[1:3] == ("", "") and cells(BAD)[-1] == "BROKEN"
    assert cells(PLAIN)[2:] == ("", "", "", "", "")


def test_the_summary_names_what_is_broken() -> None:
    assert summary([GOOD, PLAIN]) == "1 of 1 limits hold"
    assert summary([GOOD, BAD]) == "1 of 2 limits hold; broken: tail"


def test_notes_stand_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show_lines([GOOD, BAD])
    assert "note: not [here]" in capsys.readouterr().out
