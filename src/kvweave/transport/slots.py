"""How pieces of one size fill slots, one behind the other: so many the first slot, so many each other one::

10 pieces, 2 in the first slot and 3 in each other    [0 1] [2 3 4] [5 6 7] [8 9]
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slots:
    """So many ``pieces``, at least one; ``first`` and ``each`` are at least 1. The last slot may have fewer.

    >>> slots = Slots(10, 2, 3)
    >>> [slots.bounds(number) for number in range(slots.count)]
    [(0, 2), (2, 5), (5, 8), (8, 10)]
    """

    pieces: int
    first: int
    each: int

    @property
    def count(self) -> int:
        """How many slots there are."""
        return 1 + max(0, -(-(self.pieces - self.first) // self.each))

    @property
    def most(self) -> int:
        """The pieces of the fullest slot."""
        return max(min(self.first, self.pieces), min(self.each, self.pieces - self.first))

    def bounds(self, number: int) -> tuple[int, int]:
        """The first piece of a slot, and the one behind its last."""
        start = self.first + (number - 1) * self.each if number else 0
        return start, min(self.pieces, start + self.each if number else self.first)
