"""Block pools so small that what is freed is used again at once, and content that tells whose it is.

The content of a block is a number: which offer it was written for, and at which position of its table. A freed block is
overwritten in the same moment, as by a request that does not concern us, so stale bytes never look right by luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvweave.testing.simulation.ledger import Ledger

POSITIONS = 4096


def content(serial: int, position: int) -> int:
    """The content of the block at that position of the offer with that serial number."""
    return serial * POSITIONS + position


class BlockPool:
    """``size`` blocks of one engine; the one that was freed last is given out first."""

    def __init__(self, name: str, size: int, ledger: Ledger) -> None:
        self.name = name
        self._ledger = ledger
        self._free = list(range(size))
        self._owner: list[int | None] = [None] * size
        self.labels = [-1] * size
        self._overwritten = -1

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """How many blocks somebody holds."""
        return len(self._owner) - len(self._free)

    def owner(self, block: int) -> int | None:
        """Who holds a block."""
        return self._owner[block]

    def take(self, count: int, owner: int) -> tuple[int, ...]:
        """Gives blocks to an owner."""
        blocks = tuple(self._free.pop() for _ in range(count))
        for block in blocks:
            self._owner[block] = owner
        return blocks

    def write(self, blocks: Sequence[int], serial: int, positions: Iterable[int]) -> None:
        """The owner computes the content of some positions of its table."""
        for position in positions:
            self.labels[blocks[position]] = content(serial, position)

    def give_back(self, blocks: Sequence[int], owner: int) -> None:
        """Frees blocks; each must be the owner's, so none is freed twice."""
        for block in reversed(blocks):
            self._ledger.require(self._owner[block] == owner, f"{self.name}: block {block} is freed, but not held")
            self._overwritten -= 1
            self._owner[block] = None
            self.labels[block] = self._overwritten
            self._free.append(block)
