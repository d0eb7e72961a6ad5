"""What is owed to a peer is said until it is confirmed, for a lease at most, and never to one that is gone."""

from __future__ import annotations

import pytest

from kvweave.protocol.acknowledgements import MOST_OWED, Acknowledgements
from kvweave.protocol.effects import Send
from kvweave.protocol.messages import Acknowledge, Acknowledged
from tests.protocol.examples import ADDRESS, TIMING, key


def said(*ranks: int) -> tuple[Send, ...]:
    return (Send(ADDRESS, Acknowledge(7, key(), ranks)),)


@pytest.fixture
def book() -> Acknowledgements:
    """Rank 1 has ended at 100 s, under a lease of 9 s."""
    made = Acknowledgements(TIMING)
    assert made.owe(100.0, ADDRESS, 7, key(), [1], 9.0) == said(1)
    return made


def test_unconfirmed_ones_are_repeated_ever_more_rarely_and_a_lease_long(book: Acknowledgements) -> None:
    moments = [now for now in range(100, 200) if book.handle_timer(now) == said(1)]
    assert moments == [101, 103, 107]
    assert (len(book), book.get_timer()) == (0, None)


def test_ranks_that_end_later_are_said_together_with_the_unconfirmed(book: Acknowledgements) -> None:
    assert book.owe(100.5, ADDRESS, 7, key(), [0], 9.0) == said(0, 1)
    book.confirm(ADDRESS, Acknowledged(7, (1,)))
    assert book.handle_timer(101.5) == said(0)


def test_confirmed_ones_are_forgotten_and_confirmed_again_without_harm(book: Acknowledgements) -> None:
    for _ in range(2):
        book.confirm(ADDRESS, Acknowledged(7, (1,)))
    assert (len(book), book.get_timer()) == (0, None)


def test_nothing_is_owed_for_no_rank() -> None:
    book = Acknowledgements(TIMING)
    assert book.owe(100.0, ADDRESS, 7, key(), [], 9.0) == ()
    assert len(book) == 0


def test_peer_that_is_not_ready_hears_it_when_it_is() -> None:
    book = Acknowledgements(TIMING)
    assert book.owe(100.0, ADDRESS, 7, key(), [0], None) == ()
    assert book.get_timer() is None
    assert book.peer_ready(105.0, "10.0.0.9:1", 9.0) == ()
    assert book.peer_ready(105.0, ADDRESS, 9.0) == said(0)
    assert book.handle_timer(106.0) == said(0)


def test_nothing_is_owed_to_a_peer_that_is_gone(book: Acknowledgements) -> None:
    book.peer_gone("10.0.0.9:1")
    assert len(book) == 1
    book.peer_gone(ADDRESS)
    assert (len(book), book.get_timer()) == (0, None)


def test_peer_that_confirms_nothing_costs_bounded_memory() -> None:
    book = Acknowledgements(TIMING)
    for claim in range(MOST_OWED + 5):
        book.owe(100.0, ADDRESS, claim, key(), [0], 9.0)
    assert len(book) == MOST_OWED
    assert len(book.peer_ready(101.0, ADDRESS, 9.0)) == MOST_OWED


def test_peer_with_an_endless_lease_is_not_told_without_end() -> None:
    book = Acknowledgements(TIMING)
    book.owe(100.0, ADDRESS, 7, key(), [0], 600_000.0)
    for now in range(100, 500):
        book.handle_timer(now)
    assert (len(book), book.get_timer()) == (0, None)
