"""Virtual time: events in order, processes that stand still or end, clocks that run apart."""

from __future__ import annotations

from functools import partial

import pytest

from kvweave.testing.simulation.schedule import Process, Schedule


class Waking(Process):
    """Notes when it is woken, on its own clock."""

    def __init__(self, schedule: Schedule, **clock: float) -> None:
        super().__init__(schedule, "waking", **clock)
        self.woken: list[float] = []

    def wake(self) -> None:
        self.woken.append(self.clock)


def test_events_happen_by_moment_and_then_in_the_order_of_planning() -> None:
    schedule, seen = Schedule(), []
    for moment, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "later")):
        schedule.at(moment, partial(seen.append, name))
    schedule.run(5.0)
    assert (seen, schedule.now, schedule.steps) == (["a", "b", "c"], 5.0, 3)


def test_process_that_stands_still_finds_its_events_in_order_when_it_goes_on() -> None:
    schedule, seen = Schedule(), []
    process = Process(schedule, "stopped")
    process.stopped_until = 3.0
    for moment, name in ((1.0, "first"), (2.0, "second")):
        schedule.at(moment, lambda name=name: seen.append((name, schedule.now)), process)
    schedule.at(2.5, lambda: seen.append(("physics", schedule.now)))
    schedule.run(5.0)
    assert seen == [("physics", 2.5), ("first", 3.0), ("second", 3.0)]


def test_events_of_a_process_that_has_ended_never_happen() -> None:
    schedule, seen = Schedule(), []
    process = Process(schedule, "dead")
    process.soon(1.0, partial(seen.append, "late"))
    process.alive = False
    schedule.run(5.0)
    assert seen == []


def test_process_is_woken_at_the_moment_of_its_own_clock() -> None:
    schedule = Schedule()
    process = Waking(schedule, offset=500.0, rate=2.0)
    process.wake_by(504.0)
    process.wake_by(510.0)
    process.wake_by(None)
    schedule.run(5.0)
    assert process.woken == [pytest.approx(504.0)]
    assert process.woken[0] >= 504.0


def test_earlier_moment_wakes_earlier_and_once() -> None:
    schedule = Schedule()
    process = Waking(schedule)
    process.wake_by(4.0)
    process.wake_by(2.0)
    schedule.run(5.0)
    assert process.woken == [pytest.approx(2.0)]
