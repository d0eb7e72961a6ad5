"""Half-open intervals, the only notion of "from where to where" in kvweave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvweave.core.whole import LARGEST
from kvweave.errors import LayoutError


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """The integers ``start <= i < stop``.

    >>> Interval(0, 4).intersection(Interval(2, 6))
    Interval(start=2, stop=4)
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        whole = isinstance(self.start, int) and isinstance(self.stop, int)
        if not whole or not 0 <= self.start <= self.stop <= self.start + LARGEST:
            raise LayoutError(
                f"interval: start {self.start!r} and stop {self.stop!r} must be whole numbers with "
                "0 <= start <= stop, less than 2**63 apart"
            )

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"

    def intersection(self, other: Interval) -> Interval:
        """The integers in both; empty (at this interval's start) when there are none."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return Interval(start, stop) if start < stop else Interval(self.start, self.start)

    def contains(self, other: Interval) -> bool:
        """Whether every integer of ``other`` is in this interval."""
        return len(other) == 0 or (self.start <= other.start and other.stop <= self.stop)

    def cut(self, others: Iterable[Interval]) -> tuple[Interval, ...]:
        """This interval in pieces such that each of ``others`` contains a piece wholly or not at all.

        >>> Interval(0, 3).cut([Interval(0, 2), Interval(1, 5)])
        (Interval(start=0, stop=1), Interval(start=1, stop=2), Interval(start=2, stop=3))
        """
        edges = {self.start, self.stop}
        for other in others:
            edges |= {edge for edge in (other.start, other.stop) if self.start < edge < self.stop}
        ordered = sorted(edges)
        return tuple(Interval(start, stop) for start, stop in zip(ordered, ordered[1:], strict=False))


Box = tuple[Interval, ...]
"""One interval per axis of an array, in the order of the array's axes."""


def box_intersection(one: Box, other: Box) -> Box | None:
    """The box inside both, or None when it is empty."""
    both = tuple(a.intersection(b) for a, b in zip(one, other, strict=True))
    return None if any(len(interval) == 0 for interval in both) else both


def box_contains(outer: Box, inner: Box) -> bool:
    """Whether ``inner`` lies inside ``outer``."""
    return all(a.contains(b) for a, b in zip(outer, inner, strict=True))
