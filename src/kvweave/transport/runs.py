"""Pieces of one size as runs: where tokens are cut by a head split, the pieces of a block are one run.

::

    pieces   0 64 128 7     runs   0 +64 +64, 7
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

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

    def addresses(self) -> UInt64Array:
        """Of every piece, in their order."""
        if not len(self.count):
            return self.address
        return _stepped(self.address, self.stride.astype(np.uint64), self.count)


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
