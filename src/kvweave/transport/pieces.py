"""Gathering and scattering: copies between scattered pieces of this process's memory and one buffer, without a Python
loop over pieces.

Pieces of equal size whose addresses leave the same remainder are rows of one matrix over that memory, so one numpy call
moves them all. ``arranged`` puts a read's rows into an order in which there are few such stretches::

    rows    4096 4096 100 4096 100     ->  buffer  [100 100][4096 4096 4096]

Whoever calls has checked that every piece lies in memory of this process that may be read or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvweave.transport.rows import ReadRows, UInt64Array, cut_for_posts

ByteArray = npt.NDArray[np.uint8]
PlaceArray = npt.NDArray[np.intp]

MOST_SIZES = 32
"""Different sizes in one gather; a read with more has its rows cut into powers of two."""
_MOST_STRETCHES = 16


class _Memory:
    """Memory at an address, as numpy takes it."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False), "shape": shape, "strides": strides, "typestr": "|u1", "version": 3,
        }  # fmt: skip


def gather(address: UInt64Array, nbytes: UInt64Array, buffer: ByteArray) -> None:
    """Copies the pieces one behind the other to the start of ``buffer``."""
    for memory, places, packed in _matrices(address, nbytes, buffer):
        if memory.flags.c_contiguous:
            np.take(memory, places, axis=0, out=packed, mode="clip")
        else:
            packed[:] = memory[places]


def scatter(buffer: ByteArray, address: UInt64Array, nbytes: UInt64Array) -> None:
    """Copies from the start of ``buffer`` to the pieces; the opposite of ``gather``."""
    for memory, places, packed in _matrices(address, nbytes, buffer):
        memory[places] = packed


def arranged(rows: ReadRows, most_bytes: int) -> ReadRows:
    """The same bytes in rows of at most ``most_bytes`` and few sizes, those of one size together."""
    if len(rows) and rows.nbytes.max() > most_bytes:
        rows = cut_for_posts(rows, most_bytes)
    if len(rows) == 0 or (rows.nbytes == rows.nbytes[0]).all():
        return rows
    if len(np.unique(rows.nbytes)) > MOST_SIZES:
        rows = _powers_of_two(rows)
    order = np.argsort(rows.nbytes, kind="stable")
    return ReadRows(
        rows.source_address[order], rows.target_address[order], rows.nbytes[order],
        rows.source_memory, rows.source_device, rows.target_memory, rows.target_device,
    )  # fmt: skip


def count_sizes(nbytes: UInt64Array) -> int:
    """In how many stretches of one size the pieces come."""
    return int(np.count_nonzero(nbytes[1:] != nbytes[:-1])) + bool(len(nbytes))


def _powers_of_two(rows: ReadRows) -> ReadRows:
    """Every row cut into pieces of 2, 4, 8 ... bytes, the largest first."""
    chosen, offsets, sizes = [], [], []
    for bit in range(int(rows.nbytes.max()).bit_length()):
        power = 1 << bit
        found = np.flatnonzero(rows.nbytes & np.uint64(power))
        chosen.append(found)
        offsets.append(rows.nbytes[found] & np.uint64(2**64 - 2 * power))
        sizes.append(np.full(len(found), power, np.uint64))
    row, offset = np.concatenate(chosen), np.concatenate(offsets)
    return ReadRows(
        rows.source_address[row] + offset, rows.target_address[row] + offset, np.concatenate(sizes),
        rows.source_memory, rows.source_device, rows.target_memory, rows.target_device,
    )  # fmt: skip


def _matrices(
    address: UInt64Array, nbytes: UInt64Array, buffer: ByteArray
) -> Iterator[tuple[ByteArray, PlaceArray, ByteArray]]:
    """Memory as matrices, which rows of each are pieces, and the part of the buffer that belongs to them."""
    place = 0
    for start, stop in _equal(nbytes):
        size, count = int(nbytes[start]), stop - start
        packed = buffer[place : place + size * count].reshape(count, size)
        place += size * count
        yield from _of_one_size(address[start:stop], size, packed)


def _of_one_size(
    pieces: UInt64Array, size: int, packed: ByteArray
) -> Iterator[tuple[ByteArray, PlaceArray, ByteArray]]:
    """One matrix where all remainders are alike, a few where they change seldom; otherwise one with a row for every
    byte, whose rows overlap.
    """
    base = pieces.min()
    places, remainders = np.divmod(pieces - base, np.uint64(size))
    if not remainders.any():
        yield _matrix(int(base), places, size, size), places.view(np.intp), packed
        return
    parts = list(_equal(remainders))
    if len(parts) > _MOST_STRETCHES:
        places = pieces - base
        yield _matrix(int(base), places, size, 1), places.view(np.intp), packed
        return
    for start, stop in parts:
        first = base + remainders[start]
        yield _matrix(int(first), places[start:stop], size, size), places[start:stop].view(np.intp), packed[start:stop]


def _matrix(base: int, places: UInt64Array, size: int, step: int) -> ByteArray:
    return np.asarray(_Memory(base, (int(places.max()) + 1, size), (step, 1)))


def _equal(values: UInt64Array) -> Iterator[tuple[int, int]]:
    """Where equal values stand together: [start, stop) each."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    cuts = [0, *changes.tolist(), len(values)]
    return zip(cuts[:-1], cuts[1:], strict=True)
