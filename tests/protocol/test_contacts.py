"""Ready peers hear from us several times a lease, and are found silent when they do not answer."""

from __future__ import annotations

import pytest

from kvweave.protocol.contacts import Contacts
from kvweave.protocol.renewal import LEAST_INTERVAL_SECONDS
from tests.protocol.examples import ADDRESS, TIMING


@pytest.fixture
def contacts() -> Contacts:
    """One peer, ready since 100 s, with a lease of 9 s."""
    made = Contacts(TIMING, 40)
    made.ready(100.0, ADDRESS, 9.0)
    return made


def test_heartbeats_are_due_at_once_and_then_at_a_fraction_of_the_lease(contacts: Contacts) -> None:
    assert contacts.due(100.0) == [ADDRESS]
    contacts.beat(100.0, ADDRESS)
    assert contacts.due(102.9) == []
    assert contacts.due(103.0) == [ADDRESS]


def test_heartbeat_can_come_earlier_and_never_later(contacts: Contacts) -> None:
    contacts.due(100.0)
    contacts.beat(100.0, ADDRESS)
    contacts.beat_by(ADDRESS, 105.0)
    assert contacts.get_timer() == 103.0
    contacts.beat_by(ADDRESS, 101.0)
    assert contacts.due(101.0) == [ADDRESS]


def test_silence_counts_from_the_first_unanswered_heartbeat(contacts: Contacts) -> None:
    contacts.beat(100.0, ADDRESS)
    contacts.beat(103.0, ADDRESS)
    assert contacts.silent(109.9) == []
    assert contacts.silent(110.0) == [ADDRESS]


def test_peer_that_says_anything_is_not_silent(contacts: Contacts) -> None:
    contacts.beat(100.0, ADDRESS)
    contacts.hear(ADDRESS)
    assert contacts.silent(200.0) == []


def test_lost_peer_leaves_nothing_behind(contacts: Contacts) -> None:
    contacts.beat(100.0, ADDRESS)
    contacts.lose(ADDRESS)
    contacts.beat_by(ADDRESS, 101.0)
    assert (len(contacts), contacts.get_timer(), contacts.lease(ADDRESS)) == (0, None, None)


def test_rotation_moves_on_when_its_turn_is_taken(contacts: Contacts) -> None:
    assert [contacts.salt(ADDRESS), contacts.take_salt(ADDRESS), contacts.take_salt(ADDRESS)] == [40, 40, 41]
    assert contacts.salt("10.0.0.9:1") == 40


def test_peer_with_a_lease_of_no_time_does_not_hear_from_us_all_the_time(contacts: Contacts) -> None:
    contacts.ready(100.0, ADDRESS, 1e-300)
    contacts.due(100.0)
    contacts.beat(100.0, ADDRESS)
    assert contacts.get_timer() == 100.0 + LEAST_INTERVAL_SECONDS


def test_peer_attends_until_all_our_ranks_have_done_without(contacts: Contacts) -> None:
    assert contacts.attends(ADDRESS, 2)
    contacts.note_reads(ADDRESS, 0, attended=False)
    assert contacts.attends(ADDRESS, 2)
    contacts.note_reads(ADDRESS, 1, attended=False)
    assert not contacts.attends(ADDRESS, 2)
    contacts.note_reads(ADDRESS, 0, attended=True)
    assert contacts.attends(ADDRESS, 2)
    contacts.note_reads(ADDRESS, 0, attended=False)
    contacts.ready(200.0, ADDRESS, 9.0)
    assert contacts.attends(ADDRESS, 2)
    contacts.note_reads("nobody", 0, attended=False)
