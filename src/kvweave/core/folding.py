"""Many layer names as few words: ``model.layers.0.self_attn`` to ``model.layers.60.self_attn`` are "0-60" of
"self_attn".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise

_NUMBERED = re.compile(r"^(?P<before>.*?\blayers)\.(?P<number>\d+)\.(?P<module>.+)$")
_SHOWN_RUNS = 4


def fold_numbers(numbers: Collection[int]) -> str:
    """Whole numbers in ranges, both ends included.

    >>> fold_numbers(range(61)), fold_numbers([0, 2, 4, 6]), fold_numbers([0, 1, 2, 7])
    ('0-60', '0-6 step 2', '0-2, 7')
    """
    ordered = sorted(set(numbers))
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]}-{ordered[-1]} step {steps.pop()}"
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in _runs(ordered)]
    if len(runs) > _SHOWN_RUNS:
        runs[_SHOWN_RUNS - 1 : -1] = ["..."]
    return ", ".join(runs)


def fold_layers(names: Iterable[str]) -> tuple[str, str]:
    """Layer names in two words: the decoder layers' numbers, and the modules inside them.

    >>> fold_layers(f"model.layers.{number}.self_attn" for number in range(61))
    ('0-60', 'self_attn')
    >>> fold_layers(["encoder", "model.layers.4.mamba"])
    ('4', 'encoder, mamba')
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for name in names:
        found = _NUMBERED.match(name)
        numbers[found["module"] if found else name] += [int(found["number"])] if found else []
    every = {number for held in numbers.values() for number in held}
    return fold_numbers(every), ", ".join(numbers)


def _runs(ordered: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
