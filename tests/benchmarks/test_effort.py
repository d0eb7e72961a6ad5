from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from kvweave.benchmarks.effort import Effort, in_turns


@pytest.mark.parametrize(("names", "rounds"), [("ab", 2), ("abc", 6), ("abcd", 4), ("abcdef", 6)])
def test_each_contender_goes_first_and_behind_each_other_one_equally_often(names: str, rounds: int) -> None:
    order: list[str] = []
    contenders = {name: lambda name=name: float(order.append(name) or 1) for name in names}
    in_turns(contenders, rounds)
    turns = ["".join(order[start : start + len(names)]) for start in range(0, len(order), len(names))]
    assert all(sorted(turn) == sorted(names) for turn in turns) and len(turns) == rounds
    firsts = Counter(turn[0] for turn in turns)
    behind = Counter(pair for turn in turns for pair in pairwise(turn))
    assert len(set(firsts.values())) == 1 and len(firsts) == len(names)
    assert len(set(behind.values())) == 1 and len(behind) == len(names) * (len(names) - 1)


def test_quick_does_less() -> None:
    quick, whole = Effort.quick(), Effort()
    assert quick.rounds < whole.rounds and quick.openings < whole.openings
