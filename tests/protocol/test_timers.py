"""One moment per key; the earliest comes first."""

from __future__ import annotations

from kvweave.protocol.timers import Timers


def test_keys_come_due_in_order_and_once() -> None:
    timers: Timers[str] = Timers()
    for key, moment in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        timers.set(key, moment)
    assert timers.next() == 1.0
    assert timers.due(2.0) == ["early", "middle"]
    assert timers.due(2.0) == []
    assert timers.next() == 3.0


def test_setting_again_replaces() -> None:
    timers: Timers[str] = Timers()
    timers.set("key", 1.0)
    timers.set("key", 5.0)
    assert timers.due(4.0) == []
    assert timers.due(5.0) == ["key"]


def test_cancelled_key_never_comes_due() -> None:
    timers: Timers[str] = Timers()
    timers.set("key", 1.0)
    timers.cancel("key")
    timers.cancel("unknown")
    assert timers.next() is None
    assert timers.due(9.0) == []


def test_memory_does_not_grow_with_replacements() -> None:
    timers: Timers[str] = Timers()
    for moment in range(10_000):
        timers.set("key", float(moment))
    assert len(timers._heap) < 100
    assert timers.next() == 9999.0
