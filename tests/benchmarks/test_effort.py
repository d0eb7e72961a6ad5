from __future__ import annotations

from kvweave.benchmarks.effort import Effort, in_turns


def test_each_contender_goes_first_as_often_as_any_other() -> None:
    order: list[str] = []
    contenders = {name: lambda name=name: float(order.append(name) or 1) for name in "abc"}
    in_turns(contenders, rounds=3)
    assert order == list("abcbcacab")


def test_quick_does_less() -> None:
    quick, whole = Effort.quick(), Effort()
    assert quick.rounds < whole.rounds and quick.openings < whole.openings
