"""A readable log: the first of a kind at once, the rest as a number, and nothing foreign in it but letters."""

from __future__ import annotations

import logging

import pytest

from kvweave.runtime.log_lines import MOST_KINDS, LogLines, plain
from kvweave.runtime.metrics import Recorder


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> LogLines:
    caplog.set_level(logging.INFO, "kvweave")
    return LogLines("decode-1", Recorder())


def test_repeated_lines_become_one_with_their_number(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(213):
        lines.note(0, logging.WARNING, "late", f"request {number}: late")
    lines.tick(9)
    assert caplog.messages == ["request 0: late"]
    lines.tick(11)
    assert caplog.messages[1:] == ["late: 212 more like it in the last 11 s"]


def test_kind_that_came_once_is_new_again_later(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.note(0, logging.WARNING, "late", "first")
    lines.tick(11)
    lines.note(12, logging.WARNING, "late", "second")
    assert caplog.messages == ["first", "second"]


def test_interval_is_summed_up_once(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    lines.tick(0)
    for _ in range(5):
        lines.recorder.add("fetches")
    lines.recorder.add("failed", "late", 2)
    lines.recorder.add("bytes", amount=3 << 30)
    for now in (30, 61, 62, 130):
        lines.tick(now)
    assert caplog.messages == ["decode-1: in the last 61 s: 5 fetches, 2 failed (2 late), 3.00 GiB"]


def test_kinds_are_bounded(lines: LogLines, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(10 * MOST_KINDS):
        lines.note(0, logging.WARNING, f"kind {number}", "line")
    assert len(caplog.messages) == MOST_KINDS


@pytest.mark.parametrize(
    ("text", "shown"),
    [("two\nlines\r\n", "two lines"), ("\x1b[31mred\x00", "?[31mred?"), ("x" * 600, "x" * 500 + "...")],
    ids=["lines", "escapes", "length"],
)
def test_foreign_text_is_shown_plainly(text: str, shown: str) -> None:
    assert plain(text) == shown
