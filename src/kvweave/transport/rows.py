"""The rows of a read: which bytes of the source go where in the target, and how a long read is cut into posts.

Row i copies ``nbytes[i]`` bytes from ``source_address[i]`` in the peer's memory to ``target_address[i]`` in ours::

    source   ....AAAA....BB......        row 0: A, 4 bytes
    target   ..BB........AAAA....        row 1: B, 2 bytes

All rows of one read share a memory kind and a device on each side. Addresses are those of the process that owns them.
Where every layer is read alike, the rows of one layer are a pattern that is repeated; columns are made of it when
somebody looks at them::

    pattern  0 -> 64, 32 -> 0    repeats  4096 -> 512, 8192 -> 1024    rows  4096 -> 576, 4128 -> 512, 8192 -> 1088 ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvweave.errors import LocalProtocolError

UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Rows of one read: three uint64 arrays of shape (rows,), and where each side's memory lives.

    Raises ``LocalProtocolError`` when the arrays differ in shape or type, or a row is empty or passes the end of the
    address space; nothing is looked at in rows that are ``checked``, as a part of others is. Target ranges must not
    overlap: that is the plan's promise and is not checked here.
    """

    source_address: UInt64Array
    target_address: UInt64Array
    nbytes: UInt64Array
    source_memory: str = "DRAM"
    source_device: int = 0
    target_memory: str = "DRAM"
    target_device: int = 0
    checked: InitVar[bool] = False

    def __post_init__(self, checked: bool) -> None:
        if checked:
            return
        for name in ("source_address", "target_address", "nbytes"):
            array = getattr(self, name)
            if array.dtype != np.uint64 or array.shape != (len(self.nbytes),):
                raise LocalProtocolError(
                    f"read rows: {name} is {array.dtype} of shape {array.shape}; it must be uint64 of shape "
                    f"({len(self.nbytes)},), as nbytes is"
                )
        if len(self.nbytes):
            self._check_sizes()

    def _check_sizes(self) -> None:
        if not self.nbytes.min():
            row = int(np.argmin(self.nbytes))
            raise LocalProtocolError(f"read rows: nbytes of row {row} is 0; leave empty rows out")
        last = 2**64 - int(self.nbytes.max())
        for name in ("source_address", "target_address"):
            address = getattr(self, name)
            if address.max() > last and (address + self.nbytes < address).any():
                raise LocalProtocolError(f"read rows: a row of {name} passes the end of the 64-bit address space")

    @staticmethod
    def repeated(source: UInt64Array, target: UInt64Array, pattern: ReadRows) -> ReadRows:
        """The rows of ``pattern``, whose addresses are distances, from each of these pairs of addresses.

        Raises ``LocalProtocolError`` when the arrays differ in shape or type, or a row passes the end of the address
        space.
        """
        for name, first, distance in (
            ("source", source, pattern.source_address), ("target", target, pattern.target_address),
        ):  # fmt: skip
            if first.dtype != np.uint64 or first.ndim != 1 or first.shape != source.shape:
                raise LocalProtocolError(
                    f"read rows: {name} is {first.dtype} of shape {first.shape}; it must be uint64 of one dimension, "
                    "as long as the other side"
                )
            if len(first) and len(distance):
                last = distance + (pattern.nbytes - np.uint64(1))  # of no row beyond 64 bits: the pattern was checked
                if int(first.max()) + int(last.max()) >= 2**64:
                    raise LocalProtocolError(f"read rows: a row of {name} passes the end of the 64-bit address space")
        repeats = Repeats(source, target, pattern)
        return _rows_of(repeats, 0, len(repeats))

    def __len__(self) -> int:
        stretch = self._stretch
        return len(self.nbytes) if stretch is None else stretch.stop - stretch.start

    @cached_property
    def one_size(self) -> int | None:
        """Bytes of each row, where all have as many; None where they differ, and of no rows."""
        first = int(self.nbytes[0]) if len(self) else 0
        return first if first and (self.nbytes == self.nbytes[0]).all() else None

    @cached_property
    def total_bytes(self) -> int:
        """Bytes that the whole read moves."""
        return int(self.nbytes.sum()) if self.one_size is None else len(self) * self.one_size

    @property
    def longest(self) -> int:
        """Bytes of the longest row, 0 of none."""
        if self.one_size is not None:
            return self.one_size
        return int(self.nbytes.max()) if len(self) else 0

    @property
    def repeats(self) -> Repeats | None:
        """What these rows are all of, if they are made of a pattern."""
        stretch = self._stretch
        return stretch.repeats if stretch is not None and len(self) == len(stretch.repeats) else None

    def take(self, start: int, stop: int) -> ReadRows:
        """The rows ``start <= i < stop``, sharing this read's arrays."""
        stretch = self._stretch
        if stretch is not None:
            start, stop, _ = slice(start, stop).indices(len(self))
            return _rows_of(stretch.repeats, stretch.start + start, stretch.start + max(start, stop))
        some = slice(start, stop)
        return ReadRows(
            self.source_address[some], self.target_address[some], self.nbytes[some],
            self.source_memory, self.source_device, self.target_memory, self.target_device, checked=True,
        )  # fmt: skip

    def triples(self, side: str) -> UInt64Array:
        """The source's or the target's ranges as NIXL takes them: of each row address, length and device."""
        nbytes = self.nbytes if self.one_size is None else self.one_size
        return triples(getattr(self, f"{side}_address"), nbytes, getattr(self, f"{side}_device"))

    @property
    def _stretch(self) -> _Stretch | None:
        """Which of a pattern's repeated rows they are, if any; then their columns are made when they are asked for."""
        return self.__dict__.get("stretch")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if self._stretch is None or name not in _COLUMNS:
                raise AttributeError(f"ReadRows has no {name}")
            found = self.__dict__[name] = self._stretch.column(name)
            return found


_COLUMNS = ("source_address", "target_address", "nbytes")


@dataclass(frozen=True, eq=False)
class Repeats:
    """A pattern of rows, once from each pair of these addresses: two uint64 arrays of shape (repeats,)."""

    source: UInt64Array
    target: UInt64Array
    pattern: ReadRows

    def __len__(self) -> int:
        return len(self.source) * len(self.pattern)


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Rows ``start <= i < stop`` of repeated ones."""

    repeats: Repeats
    start: int
    stop: int

    def column(self, name: str) -> UInt64Array:
        repeats, pattern = self.repeats, self.repeats.pattern
        if name == "source_address":
            return sums(repeats.source, pattern.source_address, self.start, self.stop)
        if name == "target_address":
            return sums(repeats.target, pattern.target_address, self.start, self.stop)
        if pattern.one_size is not None:
            return np.full(self.stop - self.start, pattern.one_size, np.uint64)
        return sums(np.zeros_like(repeats.source), pattern.nbytes, self.start, self.stop)


def sums(first: npt.NDArray[Any], second: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[Any]:
    """The sums number ``start <= i < stop`` of each of one and each of the other, the second one changing faster."""
    row, last, within = _span(start, stop, len(second))
    if last - row == 2:  # so that nothing but these is made, however many numbers the second one has
        edge = (row + 1) * len(second)
        return np.concatenate((sums(first, second, start, edge), sums(first, second, edge, stop)))
    found: npt.NDArray[Any]
    found = first[row] + second[within] if last - row == 1 else (first[row:last, None] + second).ravel()[within]
    return found


def _span(start: int, stop: int, count: int) -> tuple[int, int, slice]:
    """In which rows of ``count`` numbers those from start to stop are, and where they are in these; none is nowhere."""
    if start >= stop:
        return 0, 0, slice(0)
    first = start // count
    return first, -(-stop // count), slice(start - first * count, stop - first * count)


def _rows_of(repeats: Repeats, start: int, stop: int) -> ReadRows:
    pattern = repeats.pattern
    rows = object.__new__(ReadRows)
    rows.__dict__.update(
        stretch=_Stretch(repeats, start, stop),
        source_memory=pattern.source_memory, source_device=pattern.source_device,
        target_memory=pattern.target_memory, target_device=pattern.target_device,
    )  # fmt: skip
    if pattern.one_size is not None and start < stop:
        rows.__dict__["one_size"] = pattern.one_size
    return rows


def triples(address: UInt64Array, nbytes: int | UInt64Array, device: int | UInt64Array) -> UInt64Array:
    """Ranges as NIXL takes them: a row of address, length and device each."""
    found = np.empty((len(address), 3), np.uint64)
    found[:, 0], found[:, 1], found[:, 2] = address, nbytes, device
    return found


def cut_for_posts(rows: ReadRows, most_bytes: int) -> ReadRows:
    """The same bytes, cut wherever they pass a multiple of ``most_bytes``, so that posts of long rows are full.

    Rows of less than an eighth of that fill a post well enough; then, and where nothing is to cut, it is ``rows``.
    """
    if 8 * rows.longest < most_bytes:
        return rows
    ends = np.cumsum(rows.nbytes, dtype=np.uint64)
    cuts = np.arange(most_bytes, int(ends[-1]), most_bytes, dtype=np.uint64)
    places = np.searchsorted(ends, cuts)
    inside = ends[places] != cuts
    if not inside.any():
        return rows
    stops = np.insert(ends, places[inside], cuts[inside])
    nbytes = np.diff(stops, prepend=np.uint64(0))
    origin = np.searchsorted(ends, stops)
    offset = stops - nbytes - (ends - rows.nbytes)[origin]
    return ReadRows(
        rows.source_address[origin] + offset, rows.target_address[origin] + offset, nbytes,
        rows.source_memory, rows.source_device, rows.target_memory, rows.target_device,
    )  # fmt: skip


def split_into_posts(rows: ReadRows, most_bytes: int, most_rows: int) -> Iterator[ReadRows]:
    """The same bytes as consecutive posts of at most ``most_bytes`` bytes and ``most_rows`` rows each."""
    if 0 < len(rows) <= most_rows and rows.total_bytes <= most_bytes:
        yield rows
        return
    rows = cut_for_posts(rows, most_bytes)
    start = 0
    for stop in _post_ends(rows, most_bytes, most_rows):
        yield rows.take(start, stop)
        start = stop


def _post_ends(rows: ReadRows, most_bytes: int, most_rows: int) -> Iterator[int]:
    """The row behind the last one of each post."""
    count = len(rows)
    if count == 0:
        return
    step = min(most_bytes // rows.longest, most_rows)
    if step == most_rows or rows.one_size is not None:
        yield from range(step, count, step)
        yield count
        return
    ends = np.cumsum(rows.nbytes, dtype=np.uint64)
    stop, before = 0, 0
    while stop < count:
        full = int(np.searchsorted(ends, np.uint64(before + most_bytes), side="right"))
        stop = min(full, stop + most_rows)
        before = int(ends[stop - 1])
        yield stop


def single(value: int) -> UInt64Array:
    """One address or size, as rows have it."""
    return np.array([value], np.uint64)
