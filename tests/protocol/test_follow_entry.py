"""The record of a followed transfer: which parts hold, and where the next fetch begins."""

from __future__ import annotations

import pytest

from kvweave.errors import RemoteProtocolError
from kvweave.protocol.follow_entry import FollowEntry, Part, Pursuit, Target, reference_of
from kvweave.protocol.messages import Offered
from kvweave.protocol.states import FollowEvent
from tests.protocol.examples import ADDRESS, ENGINE, TABLES, TARGETS, key

ID = "a transfer id that nobody guesses"


def offered(sequence: int, num_tokens: int, *confirmed: int, final: bool = False) -> Offered:
    return Offered(1, sequence, final, key(generation=sequence), num_tokens, TABLES, confirmed)


@pytest.fixture
def entry() -> FollowEntry:
    """Three parts behind a prefix of 10 tokens."""
    parts = [Part(1, 10, 100), Part(2, 100, 200), Part(3, 200, 300)]
    return FollowEntry(1, Pursuit(ADDRESS, ID), Target(TARGETS, 10), parts=parts)


@pytest.mark.parametrize(
    ("confirmed", "read_tokens"),
    [((1, 2, 3), 300), ((1, 3), 100), ((2, 3), 10), ((), 10)],
    ids=["all hold", "one in the middle does not", "the first one does not", "none does"],
)
def test_parts_count_up_to_the_first_that_does_not_hold(
    entry: FollowEntry, confirmed: tuple[int, ...], read_tokens: int
) -> None:
    entry.hear(offered(4, 400, *confirmed))
    assert entry.read_tokens == read_tokens


def test_a_part_under_way_counts_only_behind_those_that_hold(entry: FollowEntry) -> None:
    entry.reading = Part(4, 300, 400)
    assert entry.hear(offered(5, 500, 1, 3, 4))
    entry.keep()
    assert (entry.read_tokens, entry.reading) == (100, None)


def test_a_fetch_never_begins_behind_what_is_offered(entry: FollowEntry) -> None:
    fetch = entry.fetch(7, offered(4, 250, 1, 2, 3, final=True), ENGINE, Target(TARGETS, 10))
    assert fetch.order.portion is not None
    assert fetch.order.portion.kept_start == 250


def test_an_event_out_of_place_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="follow: offered cannot happen"):
        FollowEntry(1, Pursuit(ADDRESS, ID)).step(FollowEvent.OFFERED)


@pytest.mark.parametrize("address", [ADDRESS, "[::1]:5600", "prefill.example:5600"])
def test_a_reference_is_where_the_transfer_was_followed(address: str) -> None:
    reference = reference_of(address, ENGINE, offered(4, 400))
    assert (reference.address, reference.engine_id, reference.offer) == (address, ENGINE, key(generation=4))
