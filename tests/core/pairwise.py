"""All pairs: few cases in which every value of every axis meets every value of every other axis."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Case = dict[str, Any]
Pair = tuple[str, int, str, int]

CANDIDATES = 30
"""How many random completions of an uncovered pair are tried; the one that covers most is taken."""


def all_pairs(axes: Mapping[str, Sequence[Any]], possible: Callable[[Case], bool], seed: int) -> Iterator[Case]:
    """Cases until every pair of values is in one; pairs that no candidate of could exist are left out."""
    chance = random.Random(seed)
    missing = {
        (one, i, other, j): None
        for one, other in combinations(axes, 2)
        for i in range(len(axes[one]))
        for j in range(len(axes[other]))
    }
    while missing:
        pair = next(iter(missing))
        drawn = (_complete(axes, pair, chance) for _ in range(CANDIDATES))
        fitting = [choice for choice in drawn if possible(_case(axes, choice))]
        if not fitting:
            del missing[pair]
            continue
        best = max(fitting, key=lambda choice: sum(found in missing for found in _pairs(choice)))
        for found in _pairs(best):
            missing.pop(found, None)
        yield _case(axes, best)


def _complete(axes: Mapping[str, Sequence[Any]], pair: Pair, chance: random.Random) -> dict[str, int]:
    choice = {name: chance.randrange(len(values)) for name, values in axes.items()}
    return choice | {pair[0]: pair[1], pair[2]: pair[3]}


def _pairs(choice: dict[str, int]) -> list[Pair]:
    return [(one, choice[one], other, choice[other]) for one, other in combinations(choice, 2)]


def _case(axes: Mapping[str, Sequence[Any]], choice: dict[str, int]) -> Case:
    return {name: axes[name][number] for name, number in choice.items()}
