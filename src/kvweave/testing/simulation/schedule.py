"""Virtual time: what happens next, in an order that depends on nothing but the moments and the order of planning.

An event may belong to a process. A process that stands still finds its events when it goes on, in their order; the
events of one that has ended never happen. Events of no process are physics: bytes on their way, a fault.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Process:
    """What stands still and ends as one: an engine's coordinator and workers.

    Its clock shows ``offset`` when virtual time begins, and runs ``rate`` times as fast.
    """

    def __init__(self, schedule: Schedule, name: str, offset: float = 0.0, rate: float = 1.0) -> None:
        self.schedule = schedule
        self.name = name
        self.alive = True
        self.stopped_until = 0.0
        self._offset = offset
        self._rate = rate
        self._wake_at: float | None = None

    @property
    def clock(self) -> float:
        """The moment on its own clock."""
        return self._offset + self.schedule.now * self._rate

    def soon(self, delay: float, action: Action) -> None:
        """Lets the process do something later."""
        self.schedule.after(delay, action, self)

    def wake_by(self, moment: float | None) -> None:
        """Lets ``wake`` be called at a moment of the process's own clock, or earlier."""
        if moment is None:
            return
        when = max((moment - self._offset) / self._rate + 1e-9, self.schedule.now)
        if self._wake_at is None or when < self._wake_at:
            self._wake_at = when
            self.schedule.at(when, self._awake, self)

    def wake(self) -> None:
        """The time has come; for subclasses."""

    def settle(self) -> None:
        """Called after everything that the process did; for subclasses."""

    def _awake(self) -> None:
        if self._wake_at is not None and self._wake_at <= self.schedule.now:
            self._wake_at = None
            self.wake()


class Schedule:
    """All events to come. ``now`` are the virtual seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._events: list[tuple[float, int, Process | None, Action]] = []
        self._order = itertools.count()

    def at(self, moment: float, action: Action, process: Process | None = None) -> None:
        """Plans an event."""
        heapq.heappush(self._events, (max(moment, self.now), next(self._order), process, action))

    def after(self, delay: float, action: Action, process: Process | None = None) -> None:
        """Plans an event ``delay`` seconds from now."""
        heapq.heappush(self._events, (self.now + delay, next(self._order), process, action))

    def run(self, until: float) -> None:
        """Lets everything happen up to that moment."""
        events = self._events
        while events and events[0][0] <= until:
            moment, order, process, action = heapq.heappop(events)
            self.now = moment
            if process is None:
                self.steps += 1
                action()
            elif process.alive:
                if process.stopped_until > moment:
                    heapq.heappush(events, (process.stopped_until, order, process, action))
                else:
                    self.steps += 1
                    action()
                    process.settle()
        self.now = max(self.now, until)
