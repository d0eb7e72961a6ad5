"""How much is measured: sizes, and how often the contenders take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Contender = Callable[[], float]
"""Does the work once and gives the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Of one run of the suite."""

    large_bytes: int = 256 << 20
    request_bytes: int = 64 << 20
    loop_bytes: int = 16 << 20
    loop_requests: int = 64
    fragmented_bytes: int = 256 << 20
    overhead_blocks: int = 1_000
    ranks: int = 64
    many_blocks: int = 100_000
    rounds: int = 9
    openings: int = 3

    @staticmethod
    def quick() -> Effort:
        """About a third of the time, and less certain."""
        return Effort(rounds=5, openings=2, fragmented_bytes=128 << 20)


def in_turns(contenders: Mapping[str, Contender], rounds: int, first: int = 0) -> dict[str, list[float]]:
    """Every contender's seconds, round after round.

    In as many rounds as there are contenders, or twice as many where that is odd, each goes first as often as any
    other, and behind each other one as often: it finds in the caches what that one left there. ``first`` says which
    one begins: it finds what was there before all of them.

    >>> seconds = in_turns({"a": lambda: 1.0, "b": lambda: 2.0}, rounds=3)
    >>> seconds["a"], seconds["b"]
    ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(first, first + rounds):
        for name in _order(names, number):
            found[name].append(contenders[name]())
    return found


def _order(names: Sequence[str], turn: int) -> Sequence[str]:
    """0, 1, -1, 2, -2 ... from ``turn`` on (a Williams design); backwards when all have been first."""
    steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(len(names))]
    order = [names[(turn + step) % len(names)] for step in steps]
    return order[::-1] if turn // len(names) % 2 else order
