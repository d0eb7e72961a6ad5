from __future__ import annotations

import json

import pytest

from kvweave.benchmarks.report import SCHEMA, Bound, Limit, Line, Value, all_hold, document


def line(ratio: float | None, limit: Limit | None = None) -> Line:
    return Line("key", "title", (Value.of("kvweave", "GB/s", [1.0, 3.0, 2.0]),), "meaning", ratio, limit)


@pytest.mark.parametrize(
    ("bound", "ratio", "holds"),
    [
        (Bound.AT_LEAST, 2.0, True),
        (Bound.AT_LEAST, 1.9, False),
        (Bound.AT_MOST, 2.0, True),
        (Bound.AT_MOST, 2.1, False),
        (Bound.BELOW, 2.0, False),
        (Bound.BELOW, 1.9, True),
    ],
)
def test_a_limit_says_which_side_is_good(bound: Bound, ratio: float, holds: bool) -> None:
    assert line(ratio, Limit(bound, 2)).holds is holds


def test_a_line_without_a_limit_breaks_none() -> None:
    assert line(0.1).holds is None and line(None, Limit(Bound.AT_LEAST, 1)).holds is None
    assert all_hold([line(0.1), line(2, Limit(Bound.AT_LEAST, 1))])
    assert not all_hold([line(0.1), line(0.5, Limit(Bound.AT_LEAST, 1))])


def test_a_value_is_the_median_of_its_samples() -> None:
    assert Value.milliseconds("name", [0.001, 0.1, 0.002]).value == pytest.approx(2)
    assert Value.speed("name", 2_000_000_000, [1.0, 2.0, 4.0]).value == pytest.approx(1)


def test_the_document_has_every_sample_and_the_verdict() -> None:
    made = json.loads(json.dumps(document([line(0.5, Limit(Bound.AT_LEAST, 1))], quick=True, more={"planning": []})))
    assert made["schema"] == SCHEMA and made["quick"] is True and made["ok"] is False and made["planning"] == []
    (only,) = made["lines"]
    assert only["values"] == [{"name": "kvweave", "unit": "GB/s", "median": 2.0, "samples": [1.0, 3.0, 2.0]}]
    assert only["limit"] == {"bound": "at least", "value": 1} and only["holds"] is False
