"""The record of a fetch moves by the table alone."""

from __future__ import annotations

import pytest

from kvweave.errors import LocalProtocolError
from kvweave.protocol.fetch_entry import FetchEntry
from kvweave.protocol.states import FetchEvent, FetchState
from tests.protocol.examples import ADDRESS, reference


def test_entry_begins_queued_and_follows_the_table() -> None:
    entry = FetchEntry(7, ADDRESS, reference())
    assert entry.state is FetchState.QUEUED
    entry.step(FetchEvent.START)
    assert entry.state is FetchState.AWAITING_PEER
    with pytest.raises(LocalProtocolError, match="covered cannot happen while awaiting_peer"):
        entry.step(FetchEvent.COVERED)
