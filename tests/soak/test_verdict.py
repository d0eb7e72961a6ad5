"""What a soak must show: each thing that does not hold fails it, by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.soak.faults import Fault
from tests.soak.footprint import Footprint
from tests.soak.load import ANSWERED, ENDED, LOST, WRONG, Tally
from tests.soak.verdict import WARM_REQUESTS, Memory, Outcome

FAULTS = (Fault(5, "prefill-1"), Fault(7, "decode-0", 3.0))


def outcome(bad: str = "", late: float = 1.0, left: int = 0, resident: int = 104, warm: int = WARM_REQUESTS) -> Outcome:
    outcomes = Counter({ANSWERED: 90, ENDED: 3, "lease_ended": 2, bad: 1} if bad else {ANSWERED: 95, ENDED: 3})
    memory = [Memory("decode-0", Footprint(100 << 20, 9, 9), Footprint(resident << 20, 9, 9))]
    tally = Tally(outcomes, late, "late: prefill-0 to decode-0", [0.1] * 90)
    return Outcome(100, tally, FAULTS, {"prefill-0": left}, memory, 10.0, 2.0, warm)


def failed(found: Outcome) -> list[str]:
    return [line.what for line in found.lines() if not line.ok]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, []),
        ({"bad": WRONG}, ["wrong bytes"]),
        ({"bad": LOST}, ["never ended"]),
        ({"late": 5.1}, ["latest report of a failure"]),
        ({"left": 1}, ["blocks in use at the end"]),
        ({"resident": 106}, ["memory of decode-0"]),
        ({"resident": 106, "warm": 10}, []),
    ],
    ids=["all is well", "wrong bytes", "lost", "late", "blocks", "memory", "memory before it was warm"],
)
def test_what_does_not_hold_fails_the_soak(changes: dict[str, Any], what: list[str]) -> None:
    found = outcome(**changes)
    assert failed(found) == what
    assert found.ok is found.document()["ok"] is (not what)


def test_failures_are_shown_by_reason_and_faults_by_side() -> None:
    document = outcome("late").document()
    assert document["failed"] == {ENDED: 3, "lease_ended": 2, "late": 1}
    assert (document["kills"], document["stops"]) == (1, 1)
    assert outcome().table().row_count == len(list(outcome().lines()))
