"""Pieces of one size as runs: where tokens are cut by a head split, the pieces of a block are one run.

::

    pieces   0 64 128 7     runs   0 +64 +64, 7
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvweave.transport.pieces import PieceGrid, Pieces
from kvweave.transport.rows import UInt64Array

UInt32Array = npt.NDArray[np.uint32]

_NONE = np.zeros(0, np.uint32)


@dataclass(frozen=True, eq=False)
class Runs:
    """Pieces of one size: of each run the first address, the distance of its pieces, and how many it has.

    Strides and counts are empty where every run is one piece.
    """

    address: UInt64Array
    stride: UInt32Array
    count: UInt32Array

    @staticmethod
    def single(address: UInt64Array) -> Runs:
        """Runs of one piece each."""
        return Runs(address, _NONE, _NONE)

    @cached_property
    def pieces(self) -> int:
        """How many pieces there are. Counts of a peer may be anything: their sum is exact all the same."""
        return int(self.count.sum(dtype=np.uint64)) if len(self.count) else len(self.address)

    @cached_property
    def unit(self) -> int:
        """The largest number of pieces of which every run has a multiple."""
        return int(np.gcd.reduce(self.count)) if len(self.count) else 1

    def most_between(self, start: int, stop: int) -> int:
        """How many runs the pieces ``start <= i < stop`` are in, or one or two more."""
        if not len(self.count):
            return stop - start
        first, last = np.searchsorted(self._begins, (start, stop))
        return int(last - first) + 1

    def take(self, start: int, stop: int) -> Runs:
        """The pieces ``start <= i < stop``."""
        if not len(self.count):
            return Runs.single(self.address[start:stop])
        if start >= stop:
            return NO_RUNS
        begins = self._begins
        first, last = int(np.searchsorted(begins, start, "right")) - 1, int(np.searchsorted(begins, stop)) - 1
        chosen = slice(first, last + 1)
        address, stride, count = self.address[chosen], self.stride[chosen], self.count[chosen]
        skipped, left = start - int(begins[first]), int(begins[last] + self.count[last]) - stop
        if skipped or left:
            address, count = address.copy(), count.copy()
            address[0] += np.uint64(skipped * int(stride[0]))
            count[0] -= skipped
            count[-1] -= left
        return Runs(address, stride, count) if count.max() > 1 else Runs.single(address)

    def repeated(self, first: UInt64Array) -> Runs:
        """All of them, whose addresses are distances, from each of these addresses."""
        address = (first[:, None] + self.address).ravel()
        return Runs(address, np.tile(self.stride, len(first)), np.tile(self.count, len(first)))

    def addresses(self) -> UInt64Array:
        """Of every piece, in their order."""
        if not len(self.count):
            return self.address
        return _stepped(self.address, self.stride.astype(np.uint64), self.count)

    def at_places(self, piece_bytes: int) -> Pieces:
        """The pieces in memory of this process, which must have all of it."""
        unit = self.unit
        if unit == 1 or (self.stride != self.stride[0]).any():
            return Pieces(self.addresses(), piece_bytes)
        stride = self.stride.astype(np.uint64)
        units = _stepped(self.address, stride * np.uint64(unit), self.count // np.uint32(unit))
        steps = np.arange(unit, dtype=np.uint64) * stride[0]
        return PieceGrid(units, steps, piece_bytes).take(0, self.pieces)

    def spans(self, piece_bytes: int) -> UInt64Array:
        """Bytes from the begin of each run's first piece to the end of its last one."""
        if not len(self.count):
            return np.full(len(self.address), piece_bytes, np.uint64)
        return (self.count - np.uint32(1)) * self.stride.astype(np.uint64) + np.uint64(piece_bytes)

    @cached_property
    def _begins(self) -> npt.NDArray[np.int64]:
        """The number of each run's first piece."""
        return np.cumsum(self.count, dtype=np.int64) - self.count


NO_RUNS = Runs.single(np.zeros(0, np.uint64))


def _stepped(address: UInt64Array, step: UInt64Array, count: UInt32Array) -> UInt64Array:
    """From each address so many, a step apart."""
    if (count == count[0]).all():
        steps = np.arange(int(count[0]), dtype=np.uint64)
        return (address[:, None] + step[:, None] * steps).ravel()
    run = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(run)) - (np.cumsum(count, dtype=np.int64) - count)[run]
    return address[run] + number.astype(np.uint64) * step[run]


def runs_of(address: UInt64Array) -> Runs:
    """Pieces of one size as runs, in their order: three or more at one distance become one.

    >>> found = runs_of(np.array([0, 64, 128, 7], np.uint64))
    >>> found.address.tolist(), found.stride.tolist(), found.count.tolist()
    ([0, 7], [64, 0], [3, 1])
    """
    continues = _continued(address)
    if not continues.any():
        return Runs.single(address)
    first = np.flatnonzero(~continues)
    count = np.diff(first, append=len(address)).astype(np.uint32)
    several = count > 1
    stride = np.zeros(len(first), np.uint32)
    stride[several] = address[first[several] + 1] - address[first[several]]
    return Runs(address[first], stride, count)


def _continued(address: UInt64Array) -> npt.NDArray[np.bool_]:
    """Which pieces belong to the run of the piece before them.

    Between two pieces lies a step. Steps alike one behind the other make a run of their pieces, where there are two or
    more of them; the first step after such a run is not part of the next one, because its piece is taken. A step that
    goes back, or over 4 GB, makes none.
    """
    continues = np.zeros(len(address), np.bool_)
    step = address[1:] - address[:-1]
    alike = (step[1:] == step[:-1]) & (step[1:] < np.uint64(2**32))
    if not alike.any():
        return continues
    long = np.zeros(len(step), np.bool_)
    long[1:] |= alike
    long[:-1] |= alike
    starts = long.copy()
    starts[1:] &= ~alike
    shared = starts.copy()
    shared[0] = False
    shared[1:] &= long[:-1]
    continues[1:] = long & ~shared
    return continues
