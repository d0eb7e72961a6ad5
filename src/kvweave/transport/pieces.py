"""Gathering and scattering: copies between scattered pieces of this process's memory and one buffer, without a Python
loop over pieces.

Pieces of equal size whose addresses leave the same remainder are elements of one array over that memory, so one numpy
call moves them all, each as a whole. ``arranged`` puts rows into an order in which equal sizes stand together::

    rows    4096 4096 100 4096 100     ->  buffer  [100 100][4096 4096 4096]

Whoever calls has checked that every piece lies in memory of this process that may be read or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvweave.transport.rows import ReadRows, UInt64Array, sums

ByteArray = npt.NDArray[np.uint8]
PieceArray = npt.NDArray[np.void]
PlaceArray = npt.NDArray[np.intp]
_Placed = tuple[int, PieceArray, PlaceArray]
"""The first piece, memory as an array of pieces, and the places in it."""

MOST_SIZES = 32
"""Different sizes that are gathered for one read; one with more has its rows cut into powers of two."""
_PIECES_IN_STRETCH = 16
_MADE_TOGETHER = 32_768
_MOST_ARRAY_BYTES = 2**62
"""What numpy takes for the size of an array, also of one whose elements overlap."""


class _Memory:
    """Memory at an address, as numpy takes it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, count: int, size: int, step: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False), "shape": (count,), "strides": (step,), "typestr": f"|V{size}", "version": 3,
        }  # fmt: skip


class Pieces:
    """Pieces of ``size`` bytes each, at these addresses and in this order."""

    __slots__ = ("_parts", "count", "size")

    def __init__(self, address: UInt64Array, size: int) -> None:
        self.size = size
        self.count = len(address)
        self._parts: tuple[_Placed, ...] = tuple(_parts(address, size))

    @staticmethod
    def of(size: int, count: int, parts: tuple[_Placed, ...]) -> Pieces:
        """So many pieces in these parts."""
        pieces = object.__new__(Pieces)
        pieces.size, pieces.count, pieces._parts = size, count, parts
        return pieces

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self.count * self.size

    def take(self, start: int, stop: int) -> Pieces:
        """The pieces ``start <= i < stop``."""
        parts = tuple(
            (max(0, first - start), memory, places[max(0, start - first) : stop - first])
            for first, memory, places in self._parts
            if first < stop and start < first + len(places)
        )
        return Pieces.of(self.size, stop - start, parts)

    def gather(self, buffer: ByteArray) -> None:
        """Copies the pieces one behind the other to the start of ``buffer``."""
        packed = self._packed(buffer)
        for start, memory, places in self._parts:
            part = packed[start : start + len(places)]
            if memory.flags.c_contiguous:
                memory.take(places, out=part, mode="clip")
            else:
                part[:] = memory[places]

    def scatter(self, buffer: ByteArray) -> None:
        """Copies from the start of ``buffer`` to the pieces; the opposite of ``gather``.

        Not by ``put``: where the buffer lies between pieces, that copies all memory between them, and writes it back.
        """
        packed = self._packed(buffer)
        for start, memory, places in self._parts:
            memory[places] = packed[start : start + len(places)]

    def _packed(self, buffer: ByteArray) -> PieceArray:
        packed: PieceArray = buffer[: self.nbytes].view(f"V{self.size}")
        return packed


class PieceGrid:
    """Pieces of ``size`` bytes at each of some distances from each of some addresses, of which some are to be moved.

    Where they lie is made for many at once, because between two copies all that is done costs a multiple.
    """

    __slots__ = ("_begin", "_distance", "_first", "_made", "_memory", "size")

    def __init__(self, first: UInt64Array, distance: UInt64Array, size: int) -> None:
        self.size = size
        self._begin, self._made = 0, distance[:0]
        self._memory: PieceArray | None = None
        self._first, self._distance = first, distance
        base, least, step = first.min(), distance.min(), np.uint64(size)
        repeats, remainders = np.divmod(first - base, step)
        places, more_remainders = np.divmod(distance - least, step)
        if not remainders.any() and not more_remainders.any():
            count = int(repeats.max() + places.max()) + 1
            self._memory = np.asarray(_Memory(int(base + least), count, size, size))
            self._first, self._distance = repeats, places

    def take(self, start: int, stop: int) -> Pieces:
        """The pieces ``start <= i < stop``, the distance changing faster."""
        if not self._begin <= start <= stop <= self._begin + len(self._made):
            count = len(self._first) * len(self._distance)
            last = min(count, max(stop, start + _MADE_TOGETHER))
            self._begin, self._made = start, sums(self._first, self._distance, start, last)
        found = self._made[start - self._begin : stop - self._begin]
        if self._memory is None:
            return Pieces(found, self.size)
        return Pieces.of(self.size, len(found), ((0, self._memory, found.view(np.intp)),))


def arranged(rows: ReadRows, most_bytes: int) -> ReadRows:
    """The same bytes in rows of at most ``most_bytes`` and few sizes, those of one size together."""
    if rows.longest > most_bytes:
        rows = _cut(rows, np.uint64(most_bytes))
    if len(rows) == 0 or rows.one_size is not None:
        return rows
    if len(np.unique(rows.nbytes)) > MOST_SIZES:
        rows = _powers_of_two(rows)
    order = np.argsort(rows.nbytes, kind="stable")
    return _rows_at(rows, order, np.zeros(1, np.uint64), rows.nbytes[order])


def stretches(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Where equal values stand together: [start, stop) each."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    cuts = [0, *changes.tolist(), len(values)]
    return zip(cuts[:-1], cuts[1:], strict=True)


def _cut(rows: ReadRows, most_bytes: np.uint64) -> ReadRows:
    """Long rows cut into parts of ``most_bytes`` and what is left, so that there are few new sizes."""
    parts = (rows.nbytes - np.uint64(1)) // most_bytes + np.uint64(1)
    row = np.repeat(np.arange(len(rows)), parts.astype(np.intp))
    offset = (np.arange(len(row), dtype=np.uint64) - (np.cumsum(parts) - parts)[row]) * most_bytes
    return _rows_at(rows, row, offset, np.minimum(rows.nbytes[row] - offset, most_bytes))


def _powers_of_two(rows: ReadRows) -> ReadRows:
    """Every row cut into pieces of 1, 2, 4, 8 ... bytes, the largest first."""
    chosen, offsets, sizes = [], [], []
    for bit in range(int(rows.nbytes.max()).bit_length()):
        power = 1 << bit
        found = np.flatnonzero(rows.nbytes & np.uint64(power))
        chosen.append(found)
        offsets.append(rows.nbytes[found] & np.uint64(2**64 - 2 * power))
        sizes.append(np.full(len(found), power, np.uint64))
    return _rows_at(rows, np.concatenate(chosen), np.concatenate(offsets), np.concatenate(sizes))


def _rows_at(rows: ReadRows, row: npt.NDArray[np.intp], offset: UInt64Array, nbytes: UInt64Array) -> ReadRows:
    return ReadRows(
        rows.source_address[row] + offset, rows.target_address[row] + offset, nbytes,
        rows.source_memory, rows.source_device, rows.target_memory, rows.target_device,
    )  # fmt: skip


def _parts(pieces: UInt64Array, size: int) -> Iterator[_Placed]:
    """One part where all remainders are alike, a few where they change seldom; otherwise one over an array with an
    element at every byte, whose elements overlap.
    """
    base = pieces.min()
    offset = pieces - base
    places = offset // np.uint64(size)
    remainders = offset - places * np.uint64(size)
    if not remainders.any():
        yield 0, _memory(int(base), places, size, size), places.view(np.intp)
        return
    parts = list(stretches(remainders))
    if len(parts) > 1 + len(pieces) // _PIECES_IN_STRETCH and int(offset.max()) * size < _MOST_ARRAY_BYTES:
        yield 0, _memory(int(base), offset, size, 1), offset.view(np.intp)
        return
    for start, stop in parts:
        least = places[start:stop].min()
        some = places[start:stop] - least
        yield (
            start,
            _memory(int(base + remainders[start] + least * np.uint64(size)), some, size, size),
            some.view(np.intp),
        )


def _memory(base: int, places: UInt64Array, size: int, step: int) -> PieceArray:
    return np.asarray(_Memory(base, int(places.max()) + 1, size, step))
