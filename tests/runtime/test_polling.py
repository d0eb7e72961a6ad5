"""The polling thread: rounds until it is closed, closed in bounded time, and no silent end."""

from __future__ import annotations

import threading

import pytest

from kvweave.runtime import polling
from kvweave.runtime.polling import Activity, PollingThread
from tests.runtime.pair import PATIENCE, wait_until


class Rounds:
    """Counts its rounds; breaks in the round that it is told."""

    def __init__(self, activity: Activity = Activity.IDLE, breaks_in: int | None = None) -> None:
        self.activity = activity
        self.breaks_in = breaks_in
        self.rounds = 0
        self.closing_began = False
        self.closed = threading.Event()
        self.cause: BaseException | None = None

    def poll(self) -> Activity:
        self.rounds += 1
        if self.rounds == self.breaks_in:
            raise RuntimeError("unforeseen")
        return self.activity

    def sockets(self) -> list[object]:
        return []

    def begin_closing(self) -> None:
        self.closing_began = True
        self.activity = Activity.IDLE

    def close(self, cause: BaseException | None) -> None:
        self.cause = cause
        self.closed.set()


@pytest.mark.parametrize("activity", list(Activity), ids=lambda activity: activity.name)
def test_rounds_go_on_until_it_is_closed(activity: Activity) -> None:
    rounds = Rounds(activity)
    thread = PollingThread("test", rounds)
    wait_until(lambda: rounds.rounds > 3)
    assert thread.alive
    thread.close()
    thread.close()
    assert (rounds.closed.is_set(), rounds.closing_began, rounds.cause, thread.alive) == (True, True, None, False)


@pytest.mark.parametrize("activity", [Activity.IDLE, Activity.SERVING], ids=lambda activity: activity.name)
def test_waking_begins_a_round_at_once(activity: Activity, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the wait would be."""
    monkeypatch.setattr(polling, "SERVING_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(polling, "IDLE_MILLISECONDS", 2_000 * PATIENCE)
    rounds = Rounds(activity)
    thread = PollingThread("test", rounds)
    for _ in range(100):
        before = rounds.rounds
        thread.wake()
        wait_until(lambda before=before: rounds.rounds > before)
    thread.close()
    thread.wake()


def test_what_breaks_a_round_is_handed_to_the_engine_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds(breaks_in=2)
    thread = PollingThread("test", rounds)
    assert rounds.closed.wait(PATIENCE)
    assert str(rounds.cause) == "unforeseen"
    assert not thread.alive
    assert "unforeseen" in caplog.text
    thread.close()


def test_closing_from_the_thread_itself_does_not_wait_for_itself() -> None:
    rounds = Rounds()
    holder: list[PollingThread] = []
    plain = rounds.poll

    def poll() -> Activity:
        for thread in holder:
            thread.close()
        return plain()

    rounds.poll = poll
    holder.append(PollingThread("test", rounds))
    assert rounds.closed.wait(PATIENCE)
