"""Visits count what the tables are asked, and name what nobody asked."""

from __future__ import annotations

from collections import Counter

from kvweave.protocol.states import OFFER, OfferEvent, OfferState, Table
from kvweave.testing.simulation.visits import counted_visits, unvisited


def test_steps_are_counted_while_the_block_runs_alone() -> None:
    step = Table.step
    with counted_visits() as visits:
        OFFER.step(OfferState.OFFERED, OfferEvent.CLAIM)
    OFFER.step(OfferState.OFFERED, OfferEvent.CLAIM)
    assert visits == {("offer", "offered", "claim"): 1}
    assert Table.step is step


def test_entries_that_were_not_visited_are_named() -> None:
    missing = unvisited(Counter({("offer", "offered", "claim"): 1}))
    assert ("offer", "offered", "claim") not in missing
    assert ("fetch", "queued", "start") in missing
