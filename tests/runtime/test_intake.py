"""The intake: every sender has his turn, whatever the others send, and a flood costs its sender alone."""

from __future__ import annotations

from kvweave.runtime.intake import MOST_HANDLED, MOST_WAITING_BYTES, MOST_WAITING_MESSAGES, Intake


def test_messages_of_one_sender_keep_their_order() -> None:
    intake: Intake[int] = Intake()
    for number in range(3 * MOST_HANDLED):
        intake.put("a", number, 1)
    taken = [item for _ in range(3) for item in intake.take()]
    assert taken == list(range(3 * MOST_HANDLED)) and not intake


def test_quiet_sender_is_handled_in_the_next_round_of_a_flood() -> None:
    intake: Intake[str] = Intake()
    for _ in range(10 * MOST_WAITING_MESSAGES):
        intake.put("flood", "flood", 1)
    intake.put("quiet", "quiet", 1)
    taken = list(intake.take())
    assert taken.count("quiet") == 1 and taken.count("flood") == MOST_HANDLED
    assert intake.dropped == 9 * MOST_WAITING_MESSAGES


def test_large_messages_count_by_their_bytes() -> None:
    intake: Intake[int] = Intake()
    for number in range(10):
        intake.put("a", number, MOST_WAITING_BYTES // 4)
    assert (list(intake.take()), intake.dropped) == ([0, 1, 2, 3], 6)
    intake.put("a", 11, MOST_WAITING_BYTES)
    assert list(intake.take()) == [11]


def test_sender_without_messages_leaves_nothing_behind() -> None:
    intake: Intake[int] = Intake()
    for sender in range(1000):
        intake.put(sender, sender, 1)
    assert len(list(intake.take())) == 1000
    assert not intake and list(intake.take()) == []
