"""Progressive transfers on the decode side: one fetch at a time, nothing delivered before the final offer was read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from kvweave.core.portion import Portion
from kvweave.errors import LocalProtocolError, Mismatch
from kvweave.protocol.effects import (
    AbortPart,
    Delivered,
    Failed,
    FailureReason,
    FetchPart,
    ForgetPeer,
    HoldPart,
    Reusable,
    Send,
    WantPeer,
)
from kvweave.protocol.follow import MOST_RESEND_SECONDS, FollowBook
from kvweave.protocol.follow_entry import Pursuit, Target
from kvweave.protocol.messages import Ended, Follow, Leave, Offered, RefusalReason
from kvweave.protocol.states import FollowState
from tests.protocol.examples import ADDRESS, ENGINE, TABLES, TARGETS, TIMING, key, messages, of_type

ID = "a transfer id that nobody guesses"
NUMBER = 5
FIRST = 100


class Followed:
    """A book with one followed transfer at a ready peer."""

    def __init__(self, start_token: int = 0, ready: bool = True, room: bool = True, **wanted: object) -> None:
        self.book = FollowBook(TIMING, itertools.count(FIRST))
        if ready:
            self.book.peer_ready(0.0, ADDRESS, ENGINE)
        self.begun = self.book.follow(0.0, NUMBER, Pursuit(ADDRESS, ID, **wanted))
        self.target = Target(TARGETS, start_token)
        if room:
            self.book.begin(NUMBER, self.target)

    def hear(
        self, sequence: int, num_tokens: int, confirmed: Iterable[int] = (), final: bool = False, now: float = 1.0
    ) -> tuple[object, ...]:
        """An offer under the generation ``sequence``."""
        offered = Offered(
            NUMBER, sequence, final, key(generation=sequence), num_tokens, TABLES, tuple(confirmed), "prompt"
        )
        return self.book.receive(now, ADDRESS, offered)

    def end(self, number: int) -> tuple[object, ...]:
        return self.book.part_ended(2.0, Delivered(number))

    def fail(self, number: int) -> tuple[object, ...]:
        failed = self.book.part_ended(2.0, Failed(number, FailureReason.READ_FAILED, "no"))
        return failed + self.book.part_ended(2.0, Reusable(number))

    @property
    def state(self) -> FollowState | None:
        return self.book.state(NUMBER)


@pytest.fixture
def followed() -> Followed:
    return Followed()


def part(effects: tuple[object, ...]) -> tuple[int, int, Portion | None]:
    """Number, generation and portion of the fetch that begins."""
    (fetch,) = of_type(effects, FetchPart)
    return fetch.fetch, fetch.order.reference.generation, fetch.order.portion


def test_parts_are_fetched_one_behind_the_other_and_the_final_offer_is_the_report(followed: Followed) -> None:
    assert part(followed.hear(1, 256)) == (100, 1, Portion(0, others=False))
    assert followed.end(100) == ()
    assert part(followed.hear(2, 512, [1])) == (101, 2, Portion(256, others=False))
    assert followed.end(101) == ()
    assert part(followed.hear(3, 700, [1, 2], final=True)) == (102, 3, Portion(512, others=True))
    assert followed.end(102) == (Delivered(NUMBER),)
    assert len(followed.book) == 0


def test_a_fetch_says_where_it_reads_and_into_what() -> None:
    followed = Followed(start_token=32)
    (fetch,) = of_type(followed.hear(1, 256), FetchPart)
    assert (fetch.order.address, fetch.order.tables, fetch.order.start_token) == (ADDRESS, TARGETS, 32)
    assert (fetch.order.reference.engine_id, fetch.order.reference.address) == (ENGINE, ADDRESS)
    followed.end(100)
    (fetch,) = of_type(followed.hear(2, 300, [1], final=True), FetchPart)
    assert (fetch.order.start_token, fetch.order.portion) == (32, Portion(256, others=True))


def test_a_part_that_comes_while_another_is_read_waits_and_the_newest_wins(followed: Followed) -> None:
    followed.hear(1, 256)
    assert followed.hear(2, 512, [1]) == ()
    assert followed.hear(3, 600, [1, 2]) == ()
    assert part(followed.end(100)) == (101, 3, Portion(256, others=False))


def test_a_part_that_failed_is_made_up_for_by_the_next_one(followed: Followed) -> None:
    followed.hear(1, 256)
    assert followed.fail(100) == ()
    assert part(followed.hear(2, 512, [1])) == (101, 2, Portion(0, others=False))


def test_nothing_is_read_into_blocks_that_a_failed_part_may_still_write(followed: Followed) -> None:
    followed.hear(1, 256)
    followed.book.part_ended(2.0, Failed(100, FailureReason.READ_FAILED, "no"))
    assert followed.hear(2, 512, [1]) == ()
    assert part(followed.book.part_ended(3.0, Reusable(100))) == (101, 2, Portion(0, others=False))


def test_the_final_offer_is_held_while_a_part_is_read(followed: Followed) -> None:
    followed.hear(1, 256)
    effects = followed.hear(2, 300, [1], final=True)
    assert [(held.fetch, held.reference.generation) for held in of_type(effects, HoldPart)] == [(101, 2)]
    assert followed.state is FollowState.COMPLETING
    assert part(followed.end(100)) == (101, 2, Portion(256, others=True))


def test_what_the_final_offer_does_not_confirm_is_read_again(followed: Followed) -> None:
    followed.hear(1, 256)
    followed.end(100)
    assert part(followed.hear(2, 700, final=True)) == (101, 2, Portion(0, others=True))


def test_after_a_preemption_the_parts_begin_anew(followed: Followed) -> None:
    followed.hear(1, 512)
    followed.end(100)
    assert part(followed.hear(2, 256)) == (101, 2, Portion(0, others=False))
    followed.end(101)
    assert part(followed.hear(3, 700, [2], final=True)) == (102, 3, Portion(256, others=True))


def test_a_part_under_way_that_does_not_hold_any_more_is_aborted_first(followed: Followed) -> None:
    followed.hear(1, 256)
    assert followed.hear(2, 300, final=True)[0] == AbortPart(100)
    assert part(followed.fail(100)) == (101, 2, Portion(0, others=True))


def test_a_part_that_was_delivered_in_vain_does_not_count(followed: Followed) -> None:
    """It ended before the abort of it did anything."""
    followed.hear(1, 256)
    followed.hear(2, 300, final=True)
    assert part(followed.end(100)) == (101, 2, Portion(0, others=True))


def test_old_and_repeated_offers_change_nothing(followed: Followed) -> None:
    followed.hear(2, 512)
    assert followed.hear(1, 256) == followed.hear(2, 512) == ()
    followed.end(100)
    assert followed.hear(3, 512, [2]) == ()


def test_without_room_nothing_is_read_but_the_final_offer_is_held() -> None:
    followed = Followed(room=False)
    assert followed.hear(1, 256) == ()
    effects = followed.hear(2, 700, [1], final=True)
    assert [type(effect) for effect in effects] == [HoldPart]
    assert part(followed.book.begin(NUMBER, Target(TARGETS, 16))) == (100, 2, Portion(16, others=True))


def test_room_is_given_once(followed: Followed) -> None:
    with pytest.raises(LocalProtocolError, match="it was begun before"):
        followed.book.begin(NUMBER, followed.target)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [({"num_tokens": 699}, "700 tokens were offered, wanted are 699"), ({"prompt": "other"}, "another prompt")],
    ids=["another length", "another prompt"],
)
def test_what_is_not_of_this_request_is_refused_and_left(wanted: dict[str, object], words: str) -> None:
    followed = Followed(**wanted)
    failed, left, reusable = followed.hear(1, 700, final=True)
    assert (failed.fetch, failed.reason) == (NUMBER, FailureReason.WRONG_REFERENCE)
    assert words in failed.text
    assert (left, reusable) == (Send(ADDRESS, Leave(NUMBER, ID)), Reusable(NUMBER))


def test_an_offer_that_ends_before_what_is_here_already_is_refused() -> None:
    failed, *_ = Followed(start_token=800).hear(1, 700, final=True)
    assert failed.reason is FailureReason.WRONG_REFERENCE


def test_a_final_offer_that_fails_fails_the_request_once(followed: Followed) -> None:
    followed.hear(1, 700, final=True)
    (failed,) = followed.book.part_ended(2.0, Failed(100, RefusalReason.LEASE_ENDED, "late"))[:1]
    assert failed == Failed(NUMBER, RefusalReason.LEASE_ENDED, "late")
    assert followed.book.part_ended(2.0, Reusable(100)) == (Reusable(NUMBER),)
    assert len(followed.book) == 0


@pytest.mark.parametrize(
    ("heard", "under_way"),
    [((), ()), ([(1, 256)], (100,)), ([(1, 256), (2, 300, [1], True)], (100, 101)), ([(1, 300, (), True)], (100,))],
    ids=["nothing offered", "a part is read", "a part is read and the final offer held", "the final offer is read"],
)
def test_an_abort_at_any_point_ends_it_once_and_every_fetch_of_it(
    heard: list[tuple[object, ...]], under_way: tuple[int, ...]
) -> None:
    followed = Followed()
    for offered in heard:
        followed.hear(*offered)
    effects = followed.book.abort(2.0, NUMBER)
    assert effects[0] == Failed(NUMBER, FailureReason.ABORTED, "aborted by this engine")
    assert of_type(effects, AbortPart) == [AbortPart(number) for number in under_way]
    assert followed.book.abort(2.0, NUMBER) == ()
    ends = [effect for number in under_way for effect in followed.fail(number)]
    assert [*of_type(effects, Reusable), *ends] == [Reusable(NUMBER)]
    assert len(followed.book) == 0


def test_who_gives_up_says_so_until_it_is_heard(followed: Followed) -> None:
    assert messages(followed.book.abort(2.0, NUMBER)) == [Leave(NUMBER, ID)]
    assert messages(followed.book.handle_timer(3.0)) == [Leave(NUMBER, ID)]
    assert not followed.book.over
    followed.book.receive(3.1, ADDRESS, Ended(NUMBER, RefusalReason.RELEASED, ""))
    assert followed.book.over
    assert followed.book.get_timer() is None


def test_who_gives_up_before_the_peer_is_known_says_so_when_it_is() -> None:
    followed = Followed(ready=False)
    assert messages(followed.book.abort(2.0, NUMBER)) == []
    assert messages(followed.book.peer_ready(3.0, ADDRESS, ENGINE)) == [Leave(NUMBER, ID)]


def test_who_gives_up_on_a_peer_that_never_comes_has_nothing_to_say() -> None:
    followed = Followed(ready=False)
    followed.book.abort(2.0, NUMBER)
    followed.book.peer_failed(3.0, ADDRESS, "nobody listens", ())
    assert followed.book.over
    assert followed.book.get_timer() is None


def test_leaving_is_not_said_for_ever(followed: Followed) -> None:
    followed.book.abort(2.0, NUMBER)
    for moment in (3.0, 5.0, 9.0):
        followed.book.handle_timer(moment)
    assert followed.book.over


def test_questions_are_asked_again_and_more_seldom(followed: Followed) -> None:
    assert messages(followed.begun) == [Follow(NUMBER, ID, 0)]
    followed.hear(1, 256, now=1.0)
    moments = []
    for _ in range(6):
        moments.append(followed.book.get_timer())
        assert messages(followed.book.handle_timer(moments[-1])) == [Follow(NUMBER, ID, 1)]
    steps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert steps == [2.0, 4.0, MOST_RESEND_SECONDS, MOST_RESEND_SECONDS, MOST_RESEND_SECONDS]


def test_a_final_offer_that_never_comes_fails_in_time(followed: Followed) -> None:
    followed.hear(1, 256, now=50.0)
    followed.end(100)
    assert of_type(followed.book.handle_timer(50.0 + TIMING.progress_seconds - 0.1), Failed) == []
    (failed,) = of_type(followed.book.handle_timer(50.0 + TIMING.progress_seconds), Failed)
    assert failed.reason is FailureReason.UNANSWERED


def test_an_ended_transfer_fails_with_the_peers_reason(followed: Followed) -> None:
    effects = followed.book.receive(1.0, ADDRESS, Ended(NUMBER, RefusalReason.TOO_OLD, "an hour"))
    assert effects[0] == Failed(NUMBER, RefusalReason.TOO_OLD, "an hour")


def test_another_peers_words_are_nobodys(followed: Followed) -> None:
    assert followed.book.receive(1.0, "127.0.0.1:1", Ended(NUMBER, RefusalReason.TOO_OLD, "")) == ()
    assert followed.state is FollowState.FOLLOWING


def test_a_peer_that_is_not_known_is_wanted_and_asked_when_it_is_ready() -> None:
    followed = Followed(ready=False)
    assert followed.begun == (WantPeer(ADDRESS),)
    assert messages(followed.book.peer_ready(1.0, ADDRESS, ENGINE)) == [Follow(NUMBER, ID, 0)]


def test_a_peer_that_does_not_fit_fails_it_with_every_reason() -> None:
    problem = Mismatch("dtype", "fp8", "bf16", "choose one")
    failed, reusable = Followed(ready=False).book.peer_failed(1.0, ADDRESS, "no", (problem,))
    assert (failed.reason, failed.problems, reusable) == (
        FailureReason.INCOMPATIBLE, (problem,), Reusable(NUMBER),
    )  # fmt: skip


def test_a_peer_that_was_replaced_before_it_said_a_word_is_asked_anew_once(followed: Followed) -> None:
    stranger = Ended(NUMBER, RefusalReason.NOT_HANDSHAKEN, "who are you")
    assert followed.book.receive(1.0, ADDRESS, stranger) == (ForgetPeer(ADDRESS, "who are you"),)
    assert followed.book.peer_lost(1.0, ADDRESS, "replaced") == (WantPeer(ADDRESS),)
    followed.book.peer_ready(2.0, ADDRESS, "prefill-2")
    assert of_type(followed.book.peer_lost(3.0, ADDRESS, "again"), Failed)[0].reason is FailureReason.PEER_LOST


def test_a_peer_that_is_lost_in_the_midst_fails_it(followed: Followed) -> None:
    followed.hear(1, 256)
    effects = followed.book.peer_lost(2.0, ADDRESS, "killed")
    assert effects == (Failed(NUMBER, FailureReason.PEER_LOST, "killed"), AbortPart(100))
    assert followed.fail(100) == (Reusable(NUMBER),)


def test_closing_gives_all_up(followed: Followed) -> None:
    assert followed.book.close(1.0)[0].reason is FailureReason.CLOSED


def test_a_number_is_followed_once(followed: Followed) -> None:
    with pytest.raises(LocalProtocolError, match="it exists"):
        followed.book.follow(1.0, NUMBER, Pursuit(ADDRESS, ID))
