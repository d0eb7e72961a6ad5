"""Fetches: claimed, read, delivered only under a grant, acknowledged once per rank, failed once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvweave.errors import LocalProtocolError, Mismatch, RemoteProtocolError
from kvweave.protocol.effects import (
    CancelReads,
    Delivered,
    Failed,
    FailureReason,
    ForgetPeer,
    PostReads,
    RetryReads,
    Reusable,
    Send,
    WantPeer,
)
from kvweave.protocol.fetch import FetchBook
from kvweave.protocol.messages import (
    MOST_BEATS,
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
from kvweave.protocol.order import Order
from kvweave.protocol.states import FetchState
from tests.protocol.examples import ADDRESS, ENGINE, TABLES, TARGETS, TIMING, key, messages, of_type, reference

CLAIMED = Claimed(7, key(), 10, TABLES, 9.0)


def acknowledge(*ranks: int) -> list[Acknowledge]:
    return [Acknowledge(7, key(), ranks)]


ACKNOWLEDGED = acknowledge(0, 1)


@pytest.fixture
def book() -> FetchBook:
    """A book of two ranks whose peer is ready since 100 s."""
    made = FetchBook("decode-1", 2, TIMING)
    assert made.peer_ready(100.0, ADDRESS, 9.0) == ()
    return made


@pytest.fixture
def claiming(book: FetchBook) -> FetchBook:
    """Fetch 7 claims and reads since 100 s, and is not answered yet."""
    book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    return book


@pytest.fixture
def reading(claiming: FetchBook) -> FetchBook:
    """Fetch 7 was claimed at 100 s and reads, under a lease of 9 s."""
    claiming.receive(100.0, ADDRESS, CLAIMED)
    return claiming


def reasons(effects: tuple[object, ...]) -> list[object]:
    return [effect.reason for effect in of_type(effects, Failed)]


def test_fetch_claims_at_once_when_the_peer_is_ready(book: FetchBook) -> None:
    effects = book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    assert effects[1] == Send(ADDRESS, Claim(7, ENGINE, key()))


def test_fetch_waits_for_its_peer() -> None:
    book = FetchBook("decode-1", 2, TIMING)
    assert book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS)) == (WantPeer(ADDRESS),)
    assert messages(book.peer_ready(101.0, ADDRESS, 9.0)) == [Claim(7, ENGINE, key())]


def test_reads_begin_with_the_claim(book: FetchBook) -> None:
    post, _claim = book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS, 4))
    assert isinstance(post, PostReads)
    assert (post.source_tables, post.target_tables, post.start_token, post.num_tokens) == (TABLES, TARGETS, 4, 10)
    assert book.receive(101.0, ADDRESS, CLAIMED) == ()


def test_delivery_needs_all_reads_of_all_ranks(reading: FetchBook) -> None:
    assert reading.reads_ended(100.5, 7, 0, 100.5) == ()
    effects = reading.reads_ended(100.7, 7, 1, 100.7)
    assert messages(effects) == ACKNOWLEDGED
    assert effects[0] == Delivered(7)
    assert len(reading) == 0


def test_delivery_waits_for_the_claims_grant_that_comes_after_the_reads(claiming: FetchBook) -> None:
    for rank in (0, 1):
        assert claiming.reads_ended(100.5, 7, rank, 100.5) == ()
    assert (claiming.state(7), claiming.reading) == (FetchState.CLAIMING, 0)
    assert claiming.receive(101.0, ADDRESS, CLAIMED)[0] == Delivered(7)


def test_reads_after_the_claims_lease_wait_for_a_renewal(reading: FetchBook) -> None:
    assert Renew(7, 2, ENGINE, key()) in messages(reading.handle_timer(103.0))
    for rank in (0, 1):
        assert reading.reads_ended(109.5, 7, rank, 109.5) == ()
    assert reading.state(7) is FetchState.AWAITING_GRANT
    assert reading.receive(109.6, ADDRESS, Renewed(7, 2, 9.0))[0] == Delivered(7)


def test_what_reads_find_wrong_with_a_reference_waits_for_the_answer_to_its_claim(claiming: FetchBook) -> None:
    assert claiming.read_failed(100.1, 7, 0, FailureReason.BLOCK_TABLES, "block 99") == ()
    assert reasons(claiming.receive(100.2, ADDRESS, CLAIMED)) == [FailureReason.BLOCK_TABLES]


def test_refusal_says_more_than_what_reads_find_wrong(claiming: FetchBook) -> None:
    claiming.read_failed(100.1, 7, 0, FailureReason.BLOCK_TABLES, "block 99")
    effects = claiming.receive(100.2, ADDRESS, Refused(7, RefusalReason.WRONG_GENERATION, "no"))
    assert reasons(effects) == [RefusalReason.WRONG_GENERATION]


def test_refused_claim_is_reusable_once_its_reads_have_ended_and_acknowledges_nothing(claiming: FetchBook) -> None:
    effects = claiming.receive(100.2, ADDRESS, Refused(7, RefusalReason.RELEASED, "no"))
    assert effects[1:] == (CancelReads(7),)
    assert claiming.reads_ended(100.3, 7, 1, 100.3) == ()
    assert claiming.reads_ended(100.3, 7, 0, 100.3) == (Reusable(7),)


def test_what_failed_while_the_claim_is_under_way_is_read_from_another_replica(claiming: FetchBook) -> None:
    claiming.read_failed(100.1, 7, 0, FailureReason.READ_FAILED, "broken", elsewhere=True)
    assert claiming.reads_ended(100.2, 7, 0, 100.2) == (RetryReads(7, 0),)


def test_reads_that_find_the_peer_gone_before_it_answers_try_its_successor(claiming: FetchBook) -> None:
    assert claiming.read_failed(100.1, 7, 0, FailureReason.PEER_LOST, "gone") == (ForgetPeer(ADDRESS, "gone"),)
    assert claiming.peer_lost(100.1, ADDRESS, "gone") == (CancelReads(7), WantPeer(ADDRESS))


def test_claim_to_a_successor_waits_until_no_read_of_the_first_one_is_left(claiming: FetchBook) -> None:
    claiming.peer_lost(100.1, ADDRESS, "gone")
    assert messages(claiming.peer_ready(100.2, ADDRESS, 9.0)) == []
    assert claiming.reads_ended(100.3, 7, 0, 100.3) == ()
    assert messages(claiming.reads_ended(100.3, 7, 1, 100.3)) == [Claim(7, ENGINE, key())]


def test_reads_of_a_lost_peer_that_never_end_fail_their_fetch_in_time(claiming: FetchBook) -> None:
    claiming.peer_lost(100.1, ADDRESS, "gone")
    claiming.peer_ready(100.2, ADDRESS, 9.0)
    assert reasons(claiming.handle_timer(105.0)) == []
    assert reasons(claiming.handle_timer(105.1)) == [FailureReason.PEER_LOST]
    claiming.reads_ended(200.0, 7, 0, 200.0)
    assert claiming.reads_ended(200.0, 7, 1, 200.0)[-1] == Reusable(7)


def test_nothing_is_owed_to_a_peer_whose_successor_never_came(claiming: FetchBook) -> None:
    claiming.peer_lost(100.1, ADDRESS, "gone")
    claiming.abort(100.2, 7)
    claiming.peer_failed(100.3, ADDRESS, "nobody answers", ())
    for rank in (0, 1):
        claiming.reads_ended(100.4, 7, rank, 100.4)
    assert len(claiming.acknowledgements) == 0


def test_grant_of_the_first_peer_is_none_of_its_successor(claiming: FetchBook) -> None:
    claiming.peer_lost(100.1, ADDRESS, "gone")
    for rank in (0, 1):
        claiming.reads_ended(100.1, 7, rank, 100.1)
    claiming.peer_ready(100.2, ADDRESS, 9.0)
    claiming.receive(100.3, ADDRESS, CLAIMED)
    for rank in (0, 1):
        effects = claiming.reads_ended(109.1, 7, rank, 109.1)
    assert effects[0] == Delivered(7)


def test_reads_after_the_granted_lease_are_not_delivered(reading: FetchBook) -> None:
    reading.receive(100.6, ADDRESS, Renewed(7, 1, 9.0))
    reading.reads_ended(109.0, 7, 0, 109.0)
    assert reading.reads_ended(109.0, 7, 1, 109.0) == ()
    effects = reading.handle_timer(109.0)
    assert reasons(effects) == [FailureReason.LATE]
    assert ACKNOWLEDGED[0] in messages(effects)
    assert effects[2] == Reusable(7)


def test_claim_that_is_not_answered_is_repeated_ever_more_rarely_and_given_up(claiming: FetchBook) -> None:
    for rank in (0, 1):
        claiming.reads_ended(100.5, 7, rank, 100.5)
    for now, repeated in ((100.9, 0), (101.0, 1), (102.9, 0), (103.0, 1), (104.9, 0)):
        assert messages(claiming.handle_timer(now)).count(Claim(7, ENGINE, key())) == repeated
    effects = claiming.handle_timer(105.0)
    assert reasons(effects) == [FailureReason.UNANSWERED]
    assert ACKNOWLEDGED[0] in messages(effects)
    assert effects[2] == Reusable(7)


def test_claim_that_is_granted_after_its_fetch_has_ended_is_acknowledged(book: FetchBook) -> None:
    assert messages(book.receive(106.0, ADDRESS, CLAIMED)) == ACKNOWLEDGED


def test_answer_to_a_repeated_claim_that_is_read_already_changes_nothing(reading: FetchBook) -> None:
    assert reading.receive(100.1, ADDRESS, CLAIMED) == ()


def test_acknowledgements_are_repeated_until_they_are_confirmed(reading: FetchBook) -> None:
    reading.receive(100.1, ADDRESS, Renewed(7, 1, 9.0))
    for rank in (0, 1):
        reading.reads_ended(100.5, 7, rank, 100.5)
    assert ACKNOWLEDGED[0] in messages(reading.handle_timer(101.5))
    assert not reading.drained
    reading.receive(101.6, ADDRESS, Acknowledged(7, (0, 1)))
    assert ACKNOWLEDGED[0] not in messages(reading.handle_timer(103.5))


def test_renewals_that_are_not_answered_fail_the_fetch(reading: FetchBook) -> None:
    for sequence, now in ((2, 103.0), (3, 106.0)):
        assert Renew(7, sequence, ENGINE, key()) in messages(reading.handle_timer(now))
    effects = reading.handle_timer(109.0)
    assert reasons(effects) == [FailureReason.LATE]
    assert of_type(effects, CancelReads) == [CancelReads(7)]


def test_renewals_repeat_ahead_of_the_lease(reading: FetchBook) -> None:
    for sequence, now in ((1, 100.0), (2, 103.0), (3, 106.0), (4, 109.0), (5, 112.0)):
        said = [m.sequence for m in messages(reading.handle_timer(now)) if isinstance(m, Renew)]
        assert said == ([sequence] if sequence > 1 else [])
        reading.receive(now + 0.1, ADDRESS, Renewed(7, sequence, 9.0))
    reading.reads_ended(114.0, 7, 0, 114.0)
    assert reading.reads_ended(114.0, 7, 1, 114.0)[0] == Delivered(7)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Refused(7, RefusalReason.LEASE_ENDED, "over"), RefusalReason.LEASE_ENDED),
        (Revoked(7, "withdrawn"), FailureReason.REVOKED),
    ],
    ids=["renewal refused", "revoked"],
)
def test_refusal_while_reading_cancels_and_waits_for_all_reads(
    reading: FetchBook, message: object, reason: object
) -> None:
    effects = reading.receive(101.0, ADDRESS, message)
    assert reasons(effects) == [reason]
    assert CancelReads(7) in effects
    assert messages(reading.reads_ended(102.0, 7, 1, 102.0)) == acknowledge(1)
    effects = reading.reads_ended(103.0, 7, 0, 103.0)
    assert messages(effects) == acknowledge(0, 1)
    assert effects[-1] == Reusable(7)


def test_failed_read_is_reported_once_and_later_causes_are_not(reading: FetchBook) -> None:
    assert reasons(reading.read_failed(100.5, 7, 0, FailureReason.READ_FAILED, "broken")) == [FailureReason.READ_FAILED]
    assert reading.read_failed(100.5, 7, 0, FailureReason.READ_FAILED, "broken too") == ()
    assert reading.receive(101.0, ADDRESS, Refused(7, RefusalReason.LEASE_ENDED, "over")) == ()
    assert reading.abort(101.0, 7) == ()


def test_ranks_that_ended_before_a_failure_acknowledge_with_it(reading: FetchBook) -> None:
    assert messages(reading.reads_ended(100.5, 7, 1, 100.5)) == []
    assert messages(reading.read_failed(100.5, 7, 0, FailureReason.READ_FAILED, "broken")) == acknowledge(1)


def test_read_that_finds_its_peer_dead_forgets_the_peer(reading: FetchBook) -> None:
    effects = reading.read_failed(100.5, 7, 0, FailureReason.PEER_LOST, "gone")
    assert effects[-1] == ForgetPeer(ADDRESS, "gone")
    reading.peer_lost(101.0, ADDRESS, "gone")
    assert messages(reading.reads_ended(101.0, 7, 0, 101.0)) == []


def test_repeated_and_late_messages_change_nothing(reading: FetchBook) -> None:
    assert reading.receive(101.0, ADDRESS, CLAIMED) == ()
    assert reading.receive(101.0, "10.0.0.9:1", Refused(7, RefusalReason.RELEASED, "")) == ()
    assert reading.receive(101.0, ADDRESS, Renewed(99, 1, 9.0)) == ()
    assert reading.receive(101.0, ADDRESS, Refused(99, RefusalReason.RELEASED, "")) == ()
    assert reading.reads_ended(101.0, 7, 5, 101.0) == ()
    assert reading.reads_ended(101.0, 99, 0, 101.0) == ()


def test_grant_that_was_not_asked_for_is_the_peers_fault(reading: FetchBook) -> None:
    with pytest.raises(RemoteProtocolError):
        reading.receive(101.0, ADDRESS, Renewed(7, 9, 9.0))


def test_grant_before_the_claim_is_answered_changes_nothing(book: FetchBook) -> None:
    book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    assert book.receive(101.0, ADDRESS, Renewed(7, 1, 9.0)) == ()


@pytest.mark.parametrize(
    "claimed",
    [Claimed(7, key(), 10, {"full": (5, 2, 6)}, 9.0), Claimed(7, key(), 9, TABLES, 9.0)],
    ids=["other blocks", "other tokens"],
)
def test_reference_that_says_otherwise_than_the_prefill_engine_is_not_delivered(
    claiming: FetchBook, claimed: Claimed
) -> None:
    claiming.reads_ended(100.0, 7, 0, 100.0)
    effects = claiming.receive(100.0, ADDRESS, claimed)
    assert reasons(effects) == [FailureReason.WRONG_REFERENCE]
    assert messages(effects) == acknowledge(0)
    assert claiming.reads_ended(100.1, 7, 1, 100.1)[-1] == Reusable(7)


def test_two_fetches_of_one_offer_never_read_twice(reading: FetchBook) -> None:
    effects = reading.fetch(101.0, 8, Order(ADDRESS, reference(), TARGETS))
    assert reasons(effects) == [FailureReason.DUPLICATE]
    assert effects[-1] == Reusable(8)


def test_number_is_used_once(reading: FetchBook) -> None:
    with pytest.raises(LocalProtocolError, match="fetch 7"):
        reading.hold(101.0, 7, ADDRESS, reference("other"))


def test_each_request_moves_the_rotation_by_one_and_engines_begin_apart() -> None:
    salts: dict[str, list[int]] = {}
    for engine in ("decode-1", "decode-2"):
        book = FetchBook(engine, 1, TIMING)
        book.peer_ready(100.0, ADDRESS, 9.0)
        for number in range(3):
            effects = book.fetch(100.0, number, Order(ADDRESS, reference(f"request {number}"), TARGETS))
            salts.setdefault(engine, []).append(of_type(effects, PostReads)[0].salt)
    assert [salt - salts["decode-1"][0] for salt in salts["decode-1"]] == [0, 1, 2]
    assert salts["decode-1"][0] != salts["decode-2"][0]


def test_claim_to_a_peer_that_does_not_know_us_moves_to_the_next_handshake_once(book: FetchBook) -> None:
    book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    stranger = Refused(7, RefusalReason.NOT_HANDSHAKEN, "who are you")
    assert book.receive(100.1, ADDRESS, stranger) == (ForgetPeer(ADDRESS, "who are you"),)
    assert book.peer_lost(100.1, ADDRESS, "who are you") == (CancelReads(7), WantPeer(ADDRESS))
    assert book.receive(100.1, ADDRESS, stranger) == ()
    for rank in (0, 1):
        assert book.reads_ended(100.1, 7, rank, 100.1) == ()
    assert messages(book.peer_ready(100.2, ADDRESS, 9.0)) == [Claim(7, ENGINE, key())]
    assert reasons(book.receive(100.3, ADDRESS, stranger)) == [RefusalReason.NOT_HANDSHAKEN]


def test_lost_peer_fails_what_was_being_read_and_nobody_elses(reading: FetchBook) -> None:
    other = "127.0.0.1:5601"
    reading.peer_ready(100.0, other, 9.0)
    reading.fetch(100.0, 8, Order(other, reference("other"), TARGETS))
    assert [effect.fetch for effect in of_type(reading.peer_lost(101.0, ADDRESS, "gone"), Failed)] == [7]
    assert reading.state(8) is FetchState.CLAIMING


@pytest.mark.parametrize(
    ("problems", "reason"),
    [((), FailureReason.PEER_LOST), ((Mismatch("dtype", "a", "b", "c"),), FailureReason.INCOMPATIBLE)],
    ids=["unreachable", "incompatible"],
)
def test_failed_handshake_fails_what_waits_for_it(problems: tuple[Mismatch, ...], reason: FailureReason) -> None:
    book = FetchBook("decode-1", 2, TIMING)
    book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    book.hold(100.0, 8, ADDRESS, reference("held"))
    effects = book.peer_failed(101.0, ADDRESS, "no", problems)
    assert [(effect.fetch, effect.reason, effect.problems) for effect in of_type(effects, Failed)] == [
        (7, reason, problems),
        (8, reason, problems),
    ]


def test_heartbeats_of_all_held_offers_go_in_one_message_and_repeat(book: FetchBook) -> None:
    for number in range(3):
        book.hold(100.0, number, ADDRESS, reference(f"request {number}"))
    (beat,) = messages(book.handle_timer(100.0))
    assert beat == Heartbeat(tuple(key(f"request {number}") for number in range(3)))
    assert messages(book.handle_timer(102.9)) == []
    assert messages(book.handle_timer(103.0)) == [beat]


def test_heartbeats_of_very_many_offers_are_cut(book: FetchBook) -> None:
    for number in range(MOST_BEATS + 1):
        book.hold(100.0, number, ADDRESS, reference(f"request {number}"))
    assert [len(beat.offers) for beat in messages(book.handle_timer(100.0))] == [MOST_BEATS, 1]


def test_held_offer_that_ended_fails_its_request_early(book: FetchBook) -> None:
    book.hold(100.0, 7, ADDRESS, reference())
    effects = book.receive(101.0, ADDRESS, HeartbeatReply(((key(), RefusalReason.LEASE_ENDED),)))
    assert reasons(effects) == [RefusalReason.LEASE_ENDED]
    assert effects[-1] == Reusable(7)


def test_heartbeats_come_in_time_for_the_shortest_lease(book: FetchBook) -> None:
    book.hold(100.0, 7, ADDRESS, reference())
    book.handle_timer(100.0)
    book.receive(100.1, ADDRESS, HeartbeatReply((), 1.5))
    assert messages(book.handle_timer(100.5)) == []
    assert messages(book.handle_timer(100.6)) == [Heartbeat((key(),))]


def test_peer_is_asked_for_a_sign_of_life_and_lost_when_it_gives_none(book: FetchBook) -> None:
    assert messages(book.handle_timer(100.0)) == [Heartbeat(())]
    book.receive(100.1, ADDRESS, HeartbeatReply(()))
    book.handle_timer(103.0)
    assert of_type(book.handle_timer(112.9), ForgetPeer) == []
    assert [effect.address for effect in of_type(book.handle_timer(113.0), ForgetPeer)] == [ADDRESS]


def test_held_offer_is_fetched_under_its_number(book: FetchBook) -> None:
    book.hold(100.0, 7, ADDRESS, reference())
    assert book.begun == 0
    assert messages(book.fetch(101.0, 7, Order(ADDRESS, reference(), TARGETS))) == [Claim(7, ENGINE, key())]
    assert (book.begun, book.reading) == (1, 1)


def test_abort_of_a_held_offer_frees_the_other_side_too(book: FetchBook) -> None:
    book.hold(100.0, 7, ADDRESS, reference())
    effects = book.abort(101.0, 7)
    assert messages(effects) == ACKNOWLEDGED
    assert reasons(effects) == [FailureReason.ABORTED]


def test_closing_gives_everything_up(reading: FetchBook) -> None:
    reading.fetch(100.0, 8, Order(ADDRESS, reference("second"), TARGETS))
    effects = reading.close(101.0)
    assert reasons(effects) == [FailureReason.CLOSED] * 2
    assert CancelReads(7) in effects


@pytest.mark.parametrize("begun", [False, True], ids=["held", "begun"])
def test_abort_before_the_peer_is_ready_frees_the_other_side_once_it_is(begun: bool) -> None:
    book = FetchBook("decode-1", 2, TIMING)
    book.hold(100.0, 7, ADDRESS, reference())
    if begun:
        book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    assert reasons(book.abort(101.0, 7)) == [FailureReason.ABORTED]
    assert messages(book.peer_ready(101.0, ADDRESS, 9.0)) == ACKNOWLEDGED


def test_what_is_owed_to_a_peer_that_never_comes_is_forgotten() -> None:
    book = FetchBook("decode-1", 2, TIMING)
    book.hold(100.0, 7, ADDRESS, reference())
    book.abort(101.0, 7)
    book.peer_failed(101.0, ADDRESS, "nobody answers", ())
    assert book.peer_ready(102.0, ADDRESS, 9.0) == ()


def test_what_a_rank_could_not_read_is_read_again_from_another_replica(reading: FetchBook) -> None:
    reading.receive(100.1, ADDRESS, Renewed(7, 1, 9.0))
    reading.reads_ended(100.5, 7, 1, 100.5)
    assert reading.read_failed(100.5, 7, 0, FailureReason.READ_FAILED, "broken", elsewhere=True) == ()
    assert reading.reads_ended(100.6, 7, 0, 100.6) == (RetryReads(7, 0),)
    assert reading.reading == 1
    assert reading.reads_ended(101.0, 7, 0, 101.0)[0] == Delivered(7)


def test_retry_that_fails_too_fails_the_fetch_and_only_then_acknowledges(reading: FetchBook) -> None:
    reading.read_failed(100.5, 7, 0, FailureReason.READ_FAILED, "broken", elsewhere=True)
    reading.reads_ended(100.6, 7, 0, 100.6)
    effects = reading.read_failed(100.7, 7, 0, FailureReason.READ_FAILED, "broken too")
    assert (reasons(effects), messages(effects)) == ([FailureReason.READ_FAILED], [])
    assert messages(reading.reads_ended(100.8, 7, 0, 100.8)) == acknowledge(0)


def test_fetch_that_was_given_up_meanwhile_is_not_tried_again(reading: FetchBook) -> None:
    reading.read_failed(100.5, 7, 0, FailureReason.READ_FAILED, "broken", elsewhere=True)
    reading.abort(100.5, 7)
    assert messages(reading.reads_ended(100.6, 7, 0, 100.6)) == acknowledge(0)


def test_drained_engine_has_nothing_left_when_its_acknowledgements_are_confirmed(reading: FetchBook) -> None:
    reading.drain()
    reading.abort(100.1, 7)
    for rank in (0, 1):
        reading.reads_ended(100.2, 7, rank, 100.2)
    assert not reading.drained
    reading.receive(100.3, ADDRESS, Acknowledged(7, (0, 1)))
    assert reading.drained


def test_peer_is_asked_to_attend_unless_the_last_reads_of_all_ranks_did_without(book: FetchBook) -> None:
    for number, attended in ((7, False), (8, True), (9, False), (10, False)):
        offered = replace(reference(), request_id=f"request {number}")
        post, claim = book.fetch(100.0 + number, number, Order(ADDRESS, offered, TARGETS))
        assert claim.message.attend == post.attended == (number in (7, 9))
        for rank in (0, 1):
            book.reads_ended(100.0 + number, number, rank, 100.0 + number, attended and rank == 1)


def test_reads_that_end_after_their_fetch_say_nothing_about_the_peer(book: FetchBook) -> None:
    book.fetch(100.0, 7, Order(ADDRESS, reference(), TARGETS))
    book.abort(100.5, 7)
    for rank in (0, 1):
        book.reads_ended(101.0, 7, rank, 101.0, attended=False)
    _, claim = book.fetch(102.0, 8, Order(ADDRESS, reference(), TARGETS))
    assert claim.message.attend
