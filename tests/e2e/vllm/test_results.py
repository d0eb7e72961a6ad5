"""Rows outlive a sweep that was stopped, until what they measured changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.vllm.pairs import PAIRS
from tests.e2e.vllm.results import EQUAL, FAILED, INCUMBENT, OURS, WRONG, Results, Row, source_fingerprint, versions

PAIR = PAIRS[1]


def row(connector: str = OURS) -> Row:
    return Row(
        PAIR.model, PAIR.name, connector, EQUAL, prompts=40, transfers=36, seconds=4.5,
        source=source_fingerprint(), versions=versions(),
    )  # fmt: skip


@pytest.mark.parametrize("connector", [OURS, INCUMBENT])
def test_a_kept_row_is_not_run_again(tmp_path: Path, connector: str) -> None:
    results = Results(tmp_path)
    assert results.load(PAIR, connector) is None
    results.save(row(connector))
    assert results.load(PAIR, connector) == row(connector)
    assert results.load(PAIRS[2], connector) is None


def test_our_row_falls_with_our_source_and_the_incumbents_stays(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for connector in (OURS, INCUMBENT):
        results.save(replace(row(connector), source="other"))
    assert results.load(PAIR, OURS) is None
    assert results.load(PAIR, INCUMBENT) is not None
    assert Results(tmp_path, keep_stale=True).load(PAIR, OURS) is not None


@pytest.mark.parametrize("connector", [OURS, INCUMBENT])
def test_a_row_falls_with_a_version(tmp_path: Path, connector: str) -> None:
    results = Results(tmp_path)
    results.save(replace(row(connector), versions={**versions(), "python": "2.7"}))
    assert results.load(PAIR, connector) is None


def test_a_later_row_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.save(replace(row(), outcome=FAILED))
    results.save(row())
    assert results.load(PAIR, OURS) == row()
    assert len(list(tmp_path.rglob("*.*"))) == 1


def test_the_fingerprint_sees_content_and_names(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("1")
    first = source_fingerprint(tmp_path)
    (tmp_path / "one.py").write_text("2")
    second = source_fingerprint(tmp_path)
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    assert len({first, second, source_fingerprint(tmp_path)}) == 3


def test_how_a_row_reads() -> None:
    assert str(row()) == "equal"
    assert str(replace(row(), ties=1)) == "equal (1 tie)"
    assert str(replace(row(), outcome=WRONG, detail="2 of 40 wrong tokens (HTTP 200)")) == (
        "2 of 40 wrong tokens (HTTP 200)"
    )
    assert str(replace(row(), outcome=FAILED, detail="HTTP 500")) == "failed: HTTP 500"
