"""Totals by name and label, frozen when taken."""

from __future__ import annotations

from kvweave.runtime.metrics import Recorder


def test_totals_are_kept_by_label_and_summed() -> None:
    recorder = Recorder()
    recorder.add("failed", "late")
    recorder.add("failed", "aborted", 2)
    recorder.add("bytes", amount=100)
    metrics = recorder.snapshot()
    assert metrics.by_label("failed") == {"late": 1, "aborted": 2}
    assert (metrics.total("failed"), metrics.total("failed", "late"), metrics.total("unknown")) == (3, 1, 0)


def test_snapshot_does_not_move_on() -> None:
    recorder = Recorder()
    before = recorder.snapshot()
    recorder.add("bytes", amount=100)
    assert (before.total("bytes"), recorder.snapshot().total("bytes")) == (0, 100)


def test_observer_hears_every_count() -> None:
    heard: list[tuple[str, str, float]] = []
    recorder = Recorder(lambda *count: heard.append(count))
    recorder.add("failed", "late", 2)
    assert heard == [("failed", "late", 2)]
