"""How a duration is measured here: the median of several runs after one that does not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

RUNS = 7


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result: what was measured, its value and unit, and what it stands beside."""

    name: str
    value: float
    unit: str
    beside: str = ""

    def document(self) -> dict[str, object]:
        return asdict(self)


def median_seconds(work: Callable[[], object], runs: int = RUNS) -> float:
    """The median duration of ``work`` in seconds."""
    work()
    durations = []
    for _ in range(runs):
        started = perf_counter()
        work()
        durations.append(perf_counter() - started)
    return median(durations)
