from __future__ import annotations

import pytest

from kvweave.protocol.fetch_entries import FetchEntries
from kvweave.protocol.fetch_entry import FetchEntry
from tests.protocol.examples import ADDRESS, key, reference

OTHER = "127.0.0.1:5601"


@pytest.fixture
def entries() -> FetchEntries:
    """Fetch 7 of one offer, fetch 8 of another, fetch 9 of another peer."""
    made = FetchEntries()
    for number, address, name in ((7, ADDRESS, "request"), (8, ADDRESS, "second"), (9, OTHER, "request")):
        made.add(FetchEntry(number, address, reference(name)))
    return made


def numbers(fetches: list[FetchEntry]) -> list[int]:
    return [fetch.number for fetch in fetches]


def test_fetches_are_found_by_number_peer_and_offer(entries: FetchEntries) -> None:
    assert (numbers(entries.every()), numbers(entries.at(ADDRESS)), numbers(entries.at(OTHER))) == (
        [7, 8, 9],
        [7, 8],
        [9],
    )
    assert entries.wants(ADDRESS, key("second")) is entries.get(8) is entries.of(ADDRESS, 8)
    assert entries.of(OTHER, 8) is entries.wants(OTHER, key("second")) is entries.get(10) is None


def test_an_offer_has_one_fetch(entries: FetchEntries) -> None:
    assert entries.add(FetchEntry(10, ADDRESS, reference("second"))).number == 8
    assert 10 not in entries and len(entries) == 3


def test_a_fetch_that_is_dropped_leaves_nothing(entries: FetchEntries) -> None:
    fetch = entries.of(ADDRESS, 8)
    assert fetch is not None
    entries.begun.add(8)
    entries.reading.add(8)
    entries.drop(fetch)
    assert not entries.begun and not entries.reading and 8 not in entries
    assert entries.add(FetchEntry(10, ADDRESS, reference("second"))).number == 10
