"""Offers: first claim wins, leases only grow, acknowledgements count by rank, release comes once."""

from __future__ import annotations

import pytest

from kvweave.errors import LocalProtocolError
from kvweave.protocol.effects import Release, ReleaseReason, Send
from kvweave.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Claim,
    Claimed,
    Heartbeat,
    HeartbeatReply,
    RefusalReason,
    Refused,
    Renew,
    Renewed,
    Revoked,
)
from kvweave.protocol.offer import MOST_KEEPERS, MOST_OFFER_SECONDS, REMEMBERED_OFFERS, Guest, OfferBook
from tests.protocol.examples import ENGINE, GUEST, TABLES, key, messages, reference

OTHER = Guest("decode-2", 1)
CLAIM = Claim(7, ENGINE, key())
RENEW = Renew(7, 1, ENGINE, key())


@pytest.fixture
def book() -> OfferBook:
    """A book with one offer, made at 100 s, under a lease of 10 s."""
    made = OfferBook(ENGINE, 10.0)
    assert made.offer(100.0, reference()) == ()
    return made


def acknowledge(book: OfferBook, rank: int, guest: Guest = GUEST, now: float = 101.0) -> tuple[object, ...]:
    effects = book.receive(now, "a", guest, Acknowledge(7, key(), (rank,)))
    assert effects[0] == Send("a", Acknowledged(7, (rank,)))
    return effects[1:]


def refusal(effects: tuple[object, ...]) -> RefusalReason:
    (message,) = messages(effects)
    assert isinstance(message, Refused)
    return message.reason


def test_claim_is_answered_with_tokens_tables_and_a_new_lease(book: OfferBook) -> None:
    assert book.receive(105.0, "a", GUEST, CLAIM) == (Send("a", Claimed(7, key(), 10, TABLES, 10.0)),)
    assert book.handle_timer(114.9) == ()
    effects = book.handle_timer(115.0)
    assert [type(message) for message in messages(effects)] == [Revoked]
    assert effects[-1] == Release(key(), ReleaseReason.LEASE_ENDED)


def test_nothing_valid_is_released_not_offered() -> None:
    book = OfferBook(ENGINE, 10.0)
    assert book.offer(100.0, reference(num_tokens=0)) == (Release(key(), ReleaseReason.NOTHING_VALID),)
    assert len(book) == 0


def test_repeated_claim_gets_the_same_answer(book: OfferBook) -> None:
    first = book.receive(101.0, "a", GUEST, CLAIM)
    assert book.receive(102.0, "a", GUEST, CLAIM) == first


@pytest.mark.parametrize(("guest", "claim"), [(OTHER, 7), (GUEST, 8)], ids=["another engine", "another fetch"])
def test_second_claim_is_refused_by_name(book: OfferBook, guest: Guest, claim: int) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    effects = book.receive(102.0, "b", guest, Claim(claim, ENGINE, key()))
    assert refusal(effects) is RefusalReason.ALREADY_CLAIMED
    assert "request" in messages(effects)[0].text


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Claim(7, ENGINE, key("unknown")), RefusalReason.UNKNOWN_REQUEST),
        (Claim(7, ENGINE, key(generation=2)), RefusalReason.WRONG_GENERATION),
        (Claim(7, "prefill-0", key()), RefusalReason.WRONG_ENGINE),
        (RENEW, RefusalReason.NOT_CLAIMED),
    ],
    ids=["unknown request", "wrong generation", "wrong engine", "renewal without claim"],
)
def test_wrong_reference_is_refused_with_its_reason(book: OfferBook, message: object, reason: RefusalReason) -> None:
    assert refusal(book.receive(101.0, "a", GUEST, message)) is reason


def test_request_id_that_is_used_again_is_another_offer(book: OfferBook) -> None:
    book.offer(101.0, reference(generation=2))
    book.receive(102.0, "a", GUEST, CLAIM)
    assert messages(book.receive(103.0, "a", GUEST, Claim(8, ENGINE, key(generation=2))))[0].claim == 8


def test_generation_is_offered_once(book: OfferBook) -> None:
    with pytest.raises(LocalProtocolError, match="generation 1 exists"):
        book.offer(101.0, reference())


def test_renewal_lets_the_lease_begin_anew(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    assert book.receive(109.0, "a", GUEST, RENEW) == (Send("a", Renewed(7, 1, 10.0)),)
    assert book.handle_timer(118.9) == ()
    assert book.handle_timer(119.0)[-1] == Release(key(), ReleaseReason.LEASE_ENDED)


def test_message_after_the_lease_finds_it_ended_though_no_timer_ran(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    effects = book.receive(111.0, "a", GUEST, RENEW)
    assert effects[1] == Release(key(), ReleaseReason.LEASE_ENDED)
    assert refusal(effects[1:]) is RefusalReason.LEASE_ENDED


def test_leases_of_other_offers_do_not_matter(book: OfferBook) -> None:
    book.offer(100.0, reference("short"), 2.0)
    book.offer(100.0, reference("long"), 50.0)
    assert book.handle_timer(102.0) == (Release(key("short"), ReleaseReason.LEASE_ENDED),)
    assert book.handle_timer(110.0) == (Release(key(), ReleaseReason.LEASE_ENDED),)
    assert book.get_timer() == 150.0


def test_release_comes_with_the_last_ranks_acknowledgement_and_once(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    assert acknowledge(book, 1) == ()
    assert acknowledge(book, 1) == ()
    assert acknowledge(book, 0) == (Release(key(), ReleaseReason.ACKNOWLEDGED),)
    assert acknowledge(book, 0) == ()
    assert book.handle_timer(1000.0) == ()


def test_two_messages_of_one_rank_never_stand_for_two_ranks(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    for _ in range(5):
        acknowledge(book, 0)
    assert len(book) == 1


@pytest.mark.parametrize(("guest", "rank"), [(OTHER, 0), (GUEST, 2)], ids=["another engine", "a rank it has not"])
def test_foreign_acknowledgements_change_nothing(book: OfferBook, guest: Guest, rank: int) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    acknowledge(book, 0)
    assert acknowledge(book, rank, guest) == ()
    assert acknowledge(book, 1) == (Release(key(), ReleaseReason.ACKNOWLEDGED),)


END = 100.0 + MOST_OFFER_SECONDS


def kept(book: OfferBook, message: Claim | Renew | Heartbeat) -> list[object]:
    """All answers to a message that is said every 5 s until the offer's life is over."""
    moments = range(105, int(END) + 1, 5)
    return [answer for now in moments for answer in messages(book.receive(float(now), "a", GUEST, message))]


def test_heartbeats_keep_an_offer_for_a_bounded_time(book: OfferBook) -> None:
    *held, told, last = kept(book, Heartbeat((key(),)))
    assert held == [HeartbeatReply((), 10.0)] * len(held)
    assert told == last == HeartbeatReply(((key(), RefusalReason.TOO_OLD),))
    assert refusal(book.receive(END, "a", GUEST, CLAIM)) is RefusalReason.TOO_OLD


def test_renewals_keep_an_offer_for_a_bounded_time_and_grant_nothing_beyond(book: OfferBook) -> None:
    book.receive(100.0, "a", GUEST, CLAIM)
    *granted, told, refused = kept(book, RENEW)
    assert [message.lease_seconds for message in granted[-2:]] == [10.0, 5.0]
    assert isinstance(told, Revoked) and "too_old" in told.text
    assert refused.reason is RefusalReason.TOO_OLD
    assert len(book) == 0


def test_lease_that_is_longer_than_that_has_its_time() -> None:
    book = OfferBook(ENGINE, 2 * MOST_OFFER_SECONDS)
    book.offer(100.0, reference())
    assert messages(book.receive(101.0, "a", GUEST, CLAIM))[0].lease_seconds == 2 * MOST_OFFER_SECONDS - 1
    assert book.handle_timer(99.0 + 2 * MOST_OFFER_SECONDS) == ()
    assert book.handle_timer(100.0 + 2 * MOST_OFFER_SECONDS)[-1] == Release(key(), ReleaseReason.LEASE_ENDED)


def test_acknowledgement_before_a_claim_changes_nothing(book: OfferBook) -> None:
    assert acknowledge(book, 0) == ()
    assert len(book) == 1


def test_heartbeats_renew_many_and_name_the_missing(book: OfferBook) -> None:
    book.offer(100.0, reference("second"))
    keys = (key(), key("second"), key("unknown"))
    effects = book.receive(109.0, "a", GUEST, Heartbeat(keys))
    assert messages(effects) == [HeartbeatReply(((key("unknown"), RefusalReason.UNKNOWN_REQUEST),), 10.0)]
    assert book.handle_timer(118.9) == ()


def test_heartbeats_hear_the_shortest_lease(book: OfferBook) -> None:
    book.offer(100.0, reference("short"), 2.0)
    (reply,) = messages(book.receive(101.0, "a", GUEST, Heartbeat((key(), key("short")))))
    assert reply == HeartbeatReply((), 2.0)


def test_heartbeats_of_others_do_not_keep_what_is_claimed(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    (reply,) = messages(book.receive(110.0, "b", OTHER, Heartbeat((key(),))))
    assert reply.missing == ((key(), RefusalReason.ALREADY_CLAIMED),)
    assert book.handle_timer(111.0)[-1] == Release(key(), ReleaseReason.LEASE_ENDED)


def test_who_kept_an_offer_alive_hears_at_once_that_it_is_withdrawn(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, Heartbeat((key(),)))
    told, released = book.withdraw(102.0, key())
    assert told == Send("a", HeartbeatReply(((key(), RefusalReason.WITHDRAWN),)))
    assert released == Release(key(), ReleaseReason.WITHDRAWN)


def test_strangers_that_keep_an_offer_alive_take_nobodys_place(book: OfferBook) -> None:
    for connection in ("rightful", *(f"stranger {number}" for number in range(MOST_KEEPERS + 3)), "rightful"):
        book.receive(101.0, connection, GUEST, Heartbeat((key(),)))
    *told, _ = book.withdraw(102.0, key())
    assert [effect.to for effect in told] == ["rightful", "stranger 0", "stranger 1", "stranger 2"]


def test_offer_that_nobody_claimed_is_given_back_by_all_ranks_of_an_engine(book: OfferBook) -> None:
    effects = book.receive(101.0, "a", GUEST, Acknowledge(7, key(), (0, 1)))
    assert effects[1:] == (Release(key(), ReleaseReason.ACKNOWLEDGED),)
    assert refusal(book.receive(102.0, "a", GUEST, CLAIM)) is RefusalReason.RELEASED


def test_fetch_that_was_given_up_cannot_give_back_what_a_later_one_reads(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, Claim(8, ENGINE, key()))
    for _ in range(2):
        assert book.receive(102.0, "a", GUEST, Acknowledge(7, key(), (0, 1)))[1:] == ()
    assert len(book) == 1


def test_withdrawn_offer_is_released_at_once_when_nobody_reads(book: OfferBook) -> None:
    assert book.withdraw(101.0, key()) == (Release(key(), ReleaseReason.WITHDRAWN),)
    assert book.withdraw(101.0, key()) == ()
    assert refusal(book.receive(102.0, "a", GUEST, CLAIM)) is RefusalReason.WITHDRAWN


def test_withdrawn_offer_that_is_read_stays_pinned_and_grants_nothing(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    assert [type(message) for message in messages(book.withdraw(102.0, key()))] == [Revoked]
    assert refusal(book.receive(103.0, "a", GUEST, RENEW)) is RefusalReason.WITHDRAWN
    assert refusal(book.receive(103.0, "a", GUEST, CLAIM)) is RefusalReason.WITHDRAWN
    acknowledge(book, 0)
    assert acknowledge(book, 1) == (Release(key(), ReleaseReason.WITHDRAWN),)


def test_closing_tells_claimants_and_keeps_what_they_read_until_nothing_can_be_read(book: OfferBook) -> None:
    book.offer(100.0, reference("second"))
    book.receive(101.0, "a", GUEST, CLAIM)
    effects = book.begin_closing(102.0)
    assert [type(message) for message in messages(effects)] == [Revoked]
    assert effects[-1] == Release(key("second"), ReleaseReason.CLOSING)
    assert book.close() == (Release(key(), ReleaseReason.CLOSING),)
    assert (len(book), book.attended, book.get_timer()) == (0, 0, None)


def test_drained_engine_releases_new_offers_at_once_and_keeps_the_others(book: OfferBook) -> None:
    book.drain()
    assert book.offer(100.0, reference("new")) == (Release(key("new"), ReleaseReason.CLOSING),)
    assert refusal(book.receive(101.0, "a", GUEST, Claim(8, ENGINE, key("new")))) is RefusalReason.CLOSING
    assert (len(book), book.drained) == (1, False)
    book.withdraw(102.0, key())
    assert book.drained


def test_claimed_offers_are_counted_until_their_release(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, CLAIM)
    assert book.attended == 1
    acknowledge(book, 0)
    acknowledge(book, 1)
    assert book.attended == 0


def test_offers_whose_reads_need_nobody_are_not_counted(book: OfferBook) -> None:
    book.receive(101.0, "a", GUEST, Claim(7, ENGINE, key(), attend=False))
    assert (book.attended, book.claimant(key())) == (0, GUEST)
    acknowledge(book, 0)
    acknowledge(book, 1)
    assert (book.attended, len(book)) == (0, 0)


def test_memory_of_ended_offers_is_bounded(book: OfferBook) -> None:
    for number in range(REMEMBERED_OFFERS + 100):
        book.offer(101.0, reference("many", number))
        book.withdraw(101.0, key("many", number))
    assert len(book._ended) == REMEMBERED_OFFERS
    assert book._known["many"] == REMEMBERED_OFFERS
    assert refusal(book.receive(102.0, "a", GUEST, Claim(7, ENGINE, key("many", 0)))) is RefusalReason.WRONG_GENERATION


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), 10**9], ids=str)
def test_lease_must_fit_a_message(lease: float) -> None:
    with pytest.raises(LocalProtocolError, match="lease_seconds"):
        OfferBook(ENGINE, lease)
