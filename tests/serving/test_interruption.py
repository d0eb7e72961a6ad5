"""Signals become values, and nothing is raised at a moment of their own."""

from __future__ import annotations

import os
import signal

import pytest

from kvweave.serving.interruption import SIGNALS, Interruption


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_is_noted_once(number: signal.Signals) -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), number)
        assert interruption.wait(30.0) == number
        assert interruption.wait(0.01) is None


def test_each_signal_is_noted() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert [interruption.wait(30.0), interruption.wait(30.0)] == [signal.SIGINT, signal.SIGTERM]


def test_signals_mean_what_they_meant_before() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption():
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before
