"""A thread is favoured as long as it asks for it, where the system allows it; nobody hears of it where not."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from kvweave.runtime.favour import NICENESS, Favour

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness on Linux alone")


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_a_thread(run: object) -> list[int]:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(run()))
    thread.start()
    thread.join()
    return found


def test_it_is_asked_for_and_given_back() -> None:
    usual = niceness()

    def run() -> list[int]:
        favour, found = Favour(), []
        for favoured in (False, True, True, False, True):
            favour.ask(favoured)
            found.append(niceness())
        return found

    favoured = min(usual, NICENESS)
    assert in_a_thread(run) in ([usual, favoured, favoured, usual, favoured], [usual] * 5)
    assert niceness() == usual


def test_who_may_not_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    usual = niceness()

    def run() -> list[int]:
        favour = Favour()
        favour.ask(True)
        monkeypatch.undo()
        favour.ask(True)
        return [niceness()]

    assert in_a_thread(run) == [usual]
