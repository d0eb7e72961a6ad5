"""Whoever waits for an engine to be drained hears of it once, whenever he asked."""

from __future__ import annotations

import pytest

from kvweave.runtime.drains import Drains, drain_command


def test_all_who_wait_hear_of_the_end() -> None:
    drains, futures = Drains("decode-1"), [drain_command().future for _ in range(2)]
    for future in futures:
        drains.begin(future)
    assert not any(future.done() for future in futures)
    drains.end()
    assert [future.result(0) for future in futures] == [None, None]


def test_who_asks_afterwards_hears_at_once() -> None:
    drains, late = Drains("decode-1"), drain_command().future
    drains.end()
    drains.begin(late)
    assert late.done()


def test_log_says_when_an_engine_retires_and_when_it_may_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kvweave")
    drains = Drains("decode-1")
    for _ in range(2):
        drains.begin(drain_command().future)
    drains.end()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["decode-1", "decode-1"]
    assert "nothing new" in caplog.messages[0] and "drained" in caplog.messages[1]


def test_engine_that_ends_answers_everybody() -> None:
    drains, early, late = Drains("decode-1"), drain_command().future, drain_command().future
    drains.begin(early)
    drains.end_all([late])
    assert early.done() and late.done()


def test_who_waits_cannot_cancel_what_the_polling_thread_answers() -> None:
    assert not drain_command().future.cancel()
