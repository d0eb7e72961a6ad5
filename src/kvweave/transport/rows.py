"""The rows of a read: which bytes of the source go where in the target, and how a long read is cut into posts.

Row i copies ``nbytes[i]`` bytes from ``source_address[i]`` in the peer's memory to ``target_address[i]`` in ours::

    source   ....AAAA....BB......        row 0: A, 4 bytes
    target   ..BB........AAAA....        row 1: B, 2 bytes

All rows of one read share a memory kind and a device on each side. Addresses are those of the process that owns them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass

import numpy as np
import numpy.typing as npt

from kvweave.errors import LocalProtocolError

UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
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

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def total_bytes(self) -> int:
        """Bytes that the whole read moves."""
        return int(self.nbytes.sum())

    def take(self, start: int, stop: int) -> ReadRows:
        """The rows ``start <= i < stop``, sharing this read's arrays."""
        part = slice(start, stop)
        return ReadRows(
            self.source_address[part], self.target_address[part], self.nbytes[part],
            self.source_memory, self.source_device, self.target_memory, self.target_device, checked=True,
        )  # fmt: skip


def cut_for_posts(rows: ReadRows, most_bytes: int) -> ReadRows:
    """The same bytes, cut wherever they pass a multiple of ``most_bytes``, so that posts of long rows are full.

    Rows of less than an eighth of that fill a post well enough; then, and where nothing is to cut, it is ``rows``.
    """
    if len(rows) == 0 or 8 * int(rows.nbytes.max()) < most_bytes:
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
    longest = int(rows.nbytes.max())
    step = min(most_bytes // longest, most_rows)
    if step == most_rows or longest == rows.nbytes.min():
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
