"""The ledger counts, hashes what happened and when, and raises when a rule is broken."""

from __future__ import annotations

import pytest

from kvweave.testing.simulation.ledger import Ledger, Violation
from kvweave.testing.simulation.schedule import Schedule


def test_broken_rule_says_when() -> None:
    schedule = Schedule()
    schedule.run(2.5)
    with pytest.raises(Violation, match=r"at 2\.5000 s: twice"):
        Ledger(schedule).require(False, "twice")
    Ledger(schedule).require(True, "twice")


def test_hash_tells_what_happened_and_when() -> None:
    digests = set()
    for moment, what in ((0.0, "a"), (0.0, "b"), (1.0, "a")):
        schedule = Schedule()
        schedule.run(moment)
        ledger = Ledger(schedule)
        ledger.note(what)
        digests.add(ledger.digest)
    assert len(digests) == 3


def test_trace_is_kept_only_where_it_is_wanted() -> None:
    traced, plain = Ledger(Schedule(), traced=True), Ledger(Schedule())
    for ledger in (traced, plain):
        ledger.note("engine hears", 7)
        ledger.digest_bytes(b"message")
    assert traced.trace == ["   0.0000  engine hears  7"]
    assert plain.trace is None
    assert traced.digest == plain.digest
