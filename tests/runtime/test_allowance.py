"""An allowance: what each caller may have, filled again by time."""

from __future__ import annotations

from kvweave.runtime.allowance import MOST_CALLERS, Allowance


def test_what_is_taken_comes_back_with_time() -> None:
    allowance = Allowance(100, 10)
    assert [allowance.take(0, "a", 40) for _ in range(3)] == [True, True, False]
    assert not allowance.take(1, "a", 40)
    assert allowance.take(3, "a", 40)


def test_callers_have_their_own() -> None:
    allowance = Allowance(100, 10)
    assert allowance.take(0, "a", 100) and not allowance.take(0, "a", 1)
    assert allowance.take(0, "b", 100)


def test_larger_amount_than_the_whole_is_given_once() -> None:
    allowance = Allowance(100, 10)
    assert allowance.take(0, "a", 500)
    assert not allowance.take(49, "a", 500)
    assert allowance.take(50, "a", 500)


def test_refusals_take_nothing() -> None:
    allowance = Allowance(100, 10)
    assert allowance.take(0, "a", 90)
    assert not any(allowance.take(0, "a", 50) for _ in range(100))
    assert allowance.take(4, "a", 50)


def test_memory_of_callers_is_bounded() -> None:
    allowance = Allowance(100, 10)
    for caller in range(2 * MOST_CALLERS):
        allowance.take(0, caller, 100)
    assert allowance.take(0, 0, 100), "the one that called longest ago is forgotten"
    assert not allowance.take(0, 2 * MOST_CALLERS - 1, 1)
