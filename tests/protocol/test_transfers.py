"""Progressive transfers on the prefill side: who hears of which offer, which hold, when they are withdrawn."""

from __future__ import annotations

import pytest

from kvweave.protocol.effects import Release, ReleaseReason, Send
from kvweave.protocol.messages import (
    MOST_CHUNKS,
    Acknowledge,
    Ended,
    EngineRole,
    Follow,
    HandshakeRequest,
    Leave,
    Offered,
    RefusalReason,
)
from kvweave.protocol.offer import MOST_OFFER_SECONDS, Guest
from kvweave.protocol.sides import PrefillSide
from kvweave.protocol.transfers import MOST_FOLLOWED, REMEMBERED_TRANSFERS, UNSEEN_SECONDS, TransferBook
from tests.protocol.examples import ENGINE, GUEST, TABLES, key, messages, of_type, reference, small_layout

ID = "a transfer id that nobody guesses"
OTHER = Guest("decode-2", 1)
FOLLOW = Follow(7, ID, 0)


@pytest.fixture
def book() -> TransferBook:
    """A transfer that was begun at 100 s and is followed."""
    made = TransferBook()
    made.begin(100.0, ID, "prompt")
    assert made.receive(100.0, "a", GUEST, FOLLOW) == ((), ())
    return made


def ended(effects: tuple[object, ...]) -> RefusalReason:
    (message,) = messages(effects)
    assert isinstance(message, Ended)
    return message.reason


def test_the_follower_hears_each_offer_and_which_earlier_ones_hold(book: TransferBook) -> None:
    sent = [book.offer(ID, reference(generation=n), final=n == 3) for n in (1, 2, 3)]
    assert sent[0] == (Send("a", Offered(7, 1, False, key(generation=1), 10, TABLES, (), "prompt")),)
    assert [message.confirmed for (message,) in map(messages, sent)] == [(), (1,), (1, 2)]
    assert [message.final for (message,) in map(messages, sent)] == [False, False, True]


def test_a_question_is_answered_with_the_newest_offer_alone(book: TransferBook) -> None:
    for generation in (1, 2):
        book.offer(ID, reference(generation=generation), final=False)
    (again,) = messages(book.receive(101.0, "b", GUEST, Follow(7, ID, 1))[0])
    assert (again.sequence, again.offer) == (2, key(generation=2))
    assert book.receive(101.0, "b", GUEST, Follow(7, ID, 2)) == ((), ())


def test_what_was_offered_before_it_is_followed_is_told_then() -> None:
    book = TransferBook()
    book.begin(100.0, ID)
    assert book.offer(ID, reference(), final=False) == ()
    (message,) = messages(book.receive(101.0, "a", GUEST, FOLLOW)[0])
    assert message.sequence == 1


def test_a_transfer_may_be_followed_before_it_begins() -> None:
    book = TransferBook()
    book.receive(100.0, "a", GUEST, FOLLOW)
    book.begin(100.0 + UNSEEN_SECONDS - 1, ID)
    assert book.handle_timer(100.0 + UNSEEN_SECONDS) == ((), ())
    assert len(messages(book.offer(ID, reference(), final=False))) == 1


def test_what_nobody_begins_ends_in_time() -> None:
    book = TransferBook()
    book.receive(100.0, "a", GUEST, FOLLOW)
    assert book.get_timer() == 100.0 + UNSEEN_SECONDS
    assert ended(book.handle_timer(100.0 + UNSEEN_SECONDS)[0]) is RefusalReason.UNKNOWN_REQUEST
    assert ended(book.receive(300.0, "a", GUEST, FOLLOW)[0]) is RefusalReason.UNKNOWN_REQUEST


def test_what_is_never_finished_ends_in_time(book: TransferBook) -> None:
    book.offer(ID, reference(), final=False)
    told, withdrawn = book.handle_timer(100.0 + MOST_OFFER_SECONDS)
    assert (ended(told), withdrawn) == (RefusalReason.TOO_OLD, (key(),))


@pytest.mark.parametrize(("guest", "number"), [(OTHER, 7), (GUEST, 8)], ids=["another engine", "another request"])
def test_a_transfer_is_the_first_ones(book: TransferBook, guest: Guest, number: int) -> None:
    assert ended(book.receive(101.0, "b", guest, Follow(number, ID, 0))[0]) is RefusalReason.ALREADY_CLAIMED


def test_blocks_that_are_given_up_void_what_was_offered(book: TransferBook) -> None:
    for generation in (1, 2):
        book.offer(ID, reference(generation=generation), final=False)
    assert book.retract(ID) == (key(generation=1), key(generation=2))
    (message,) = messages(book.offer(ID, reference(generation=3), final=False))
    assert message.confirmed == ()
    (message,) = messages(book.offer(ID, reference(generation=4), final=True))
    assert message.confirmed == (3,)


def test_who_leaves_is_answered_and_nothing_is_kept_for_him(book: TransferBook) -> None:
    book.offer(ID, reference(), final=False)
    told, withdrawn = book.receive(101.0, "a", GUEST, Leave(7, ID))
    assert (ended(told), withdrawn) == (RefusalReason.RELEASED, (key(),))
    assert book.follower_left(ID) and not book.wants(ID)
    assert book.receive(102.0, "a", GUEST, Leave(7, ID))[1] == ()


def test_who_leaves_before_it_begins_has_left_when_it_does() -> None:
    book = TransferBook()
    assert ended(book.receive(100.0, "a", GUEST, Leave(7, ID))[0]) is RefusalReason.RELEASED
    book.begin(101.0, ID)
    assert book.follower_left(ID)


def test_a_stranger_cannot_leave_for_another(book: TransferBook) -> None:
    book.receive(101.0, "b", OTHER, Leave(7, ID))
    assert book.wants(ID)


def test_a_holder_may_wait_for_so_many_transfers_only() -> None:
    book = TransferBook(lambda connection: "host")
    for number in range(MOST_FOLLOWED):
        assert book.receive(100.0, "a", GUEST, Follow(number, f"{ID} {number}", 0)) == ((), ())
    assert ended(book.receive(100.0, "b", OTHER, FOLLOW)[0]) is RefusalReason.TOO_MANY
    book.begin(100.0, f"{ID} 0")
    assert book.receive(100.0, "b", OTHER, FOLLOW) == ((), ())


def test_so_many_chunks_are_offered_and_no_more(book: TransferBook) -> None:
    for generation in range(MOST_CHUNKS + 1):
        assert book.wants(ID)
        book.offer(ID, reference(generation=generation), final=False)
    assert not book.wants(ID)
    (message,) = messages(book.offer(ID, reference(generation=MOST_CHUNKS + 1), final=True))
    assert len(message.confirmed) == MOST_CHUNKS


def test_only_the_latest_ended_transfers_are_remembered() -> None:
    book = TransferBook()
    for number in range(REMEMBERED_TRANSFERS + 1):
        book.begin(100.0, f"{ID} {number}")
        book.abandon(f"{ID} {number}", RefusalReason.WITHDRAWN)
    assert book.receive(100.0, "a", GUEST, Follow(1, f"{ID} 0", 0)) == ((), ())
    assert ended(book.receive(100.0, "a", GUEST, Follow(2, f"{ID} 1", 0))[0]) is RefusalReason.WITHDRAWN


@pytest.fixture
def side() -> PrefillSide:
    """A prefill side with a follower, a part and the final offer."""
    made = PrefillSide(ENGINE, small_layout(), (b"a", b"b"), 10.0)
    made.receive(100.0, "a", HandshakeRequest(1, GUEST.engine_id, EngineRole.DECODE, 2))
    made.begin_transfer(100.0, ID)
    made.receive(100.0, "a", FOLLOW)
    made.offer_part(100.0, ID, reference(generation=1), final=False)
    return made


def test_with_the_final_offer_those_that_nobody_read_are_released(side: PrefillSide) -> None:
    side.offer_part(101.0, ID, reference(generation=2), final=True)
    effects = side.receive(102.0, "a", Acknowledge(9, key(generation=2), (0, 1)))
    assert of_type(effects, Release) == [
        Release(key(generation=2), ReleaseReason.ACKNOWLEDGED),
        Release(key(generation=1), ReleaseReason.WITHDRAWN),
    ]
    assert (len(side.transfers), len(side.offers)) == (0, 0)


def test_after_the_follower_has_left_every_offer_is_released_at_once(side: PrefillSide) -> None:
    left = side.receive(101.0, "a", Leave(7, ID))
    assert of_type(left, Release) == [Release(key(generation=1), ReleaseReason.WITHDRAWN)]
    for generation, final in ((2, False), (3, True)):
        effects = side.offer_part(102.0, ID, reference(generation=generation), final=final)
        assert of_type(effects, Release) == [Release(key(generation=generation), ReleaseReason.WITHDRAWN)]
    assert (len(side.transfers), len(side.offers)) == (0, 0)


def test_an_abandoned_transfer_releases_its_offers_and_tells_the_follower(side: PrefillSide) -> None:
    effects = side.abandon_transfer(101.0, ID)
    assert ended(effects) is RefusalReason.WITHDRAWN
    assert of_type(effects, Release) == [Release(key(generation=1), ReleaseReason.WITHDRAWN)]


def test_a_final_offer_that_nobody_follows_waits_as_every_offer_does() -> None:
    side = PrefillSide(ENGINE, small_layout(), (b"a", b"b"), 10.0)
    side.begin_transfer(100.0, ID)
    assert side.offer_part(100.0, ID, reference(), final=True) == ()
    assert of_type(side.handle_timer(110.0), Release) == [Release(key(), ReleaseReason.LEASE_ENDED)]
    assert len(side.transfers) == 0


def test_closing_tells_who_follows(side: PrefillSide) -> None:
    effects = side.begin_closing(101.0)
    assert RefusalReason.CLOSING in [message.reason for message in messages(effects) if isinstance(message, Ended)]
    assert of_type(effects, Release) == [Release(key(generation=1), ReleaseReason.CLOSING)]


def test_who_has_not_shaken_hands_is_told_so() -> None:
    side = PrefillSide(ENGINE, small_layout(), (b"a", b"b"), 10.0)
    for message in (FOLLOW, Leave(7, ID)):
        assert ended(side.receive(100.0, "stranger", message)) is RefusalReason.NOT_HANDSHAKEN
