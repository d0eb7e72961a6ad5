"""Which memory is registered, and whether rows lie inside it.

A row must lie inside one region: neighbouring regions are not joined, because the hardware's keys are per region.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.rows import ReadRows, UInt64Array

MEMORY_KINDS = ("DRAM", "VRAM")
REGION_RECORD = np.dtype([("address", "<u8"), ("nbytes", "<u8"), ("device", "<u4"), ("memory", "<u4")])
"""One region in agent data; ``memory`` counts in ``MEMORY_KINDS``."""

Span = tuple[UInt64Array, UInt64Array]
"""The starts of regions of one kind, rising, and their ends."""
Starts = npt.NDArray[np.intp]
"""Where groups of neighbouring rows begin: the first at row 0, the last one ends with the rows."""

MANY_ROWS = 1024
"""From so many rows on they are looked at in groups."""

_NOWHERE: Span = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


class MemoryRegion(Protocol):
    """What a transport must know of a region; ``kvweave.core.layout.Region`` is one."""

    @property
    def address(self) -> int:
        """The first byte's address."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes from there."""
        ...

    @property
    def memory(self) -> str:
        """The kind: DRAM or VRAM."""
        ...

    @property
    def device(self) -> int:
        """The GPU's number, 0 for DRAM."""
        ...


class RegionTable:
    """Registered regions, frozen. Raises ``TransportError`` (REJECTED) for regions that overlap or cannot exist."""

    __slots__ = ("_spans", "records")

    def __init__(self, records: npt.NDArray[np.void] | None = None) -> None:
        self.records = np.zeros(0, REGION_RECORD) if records is None else records
        self._spans: dict[tuple[str, int], Span] = {}
        if (self.records["memory"] >= len(MEMORY_KINDS)).any():
            raise _rejected(f"memory kind {self.records['memory'].max()} is not known; {', '.join(MEMORY_KINDS)} are")
        for memory, device in np.unique(self.records[["memory", "device"]]).tolist():
            chosen = self.records[(self.records["memory"] == memory) & (self.records["device"] == device)]
            self._spans[MEMORY_KINDS[memory], device] = _span(chosen)

    def __len__(self) -> int:
        return len(self.records)

    def with_regions(self, regions: Iterable[MemoryRegion]) -> RegionTable:
        """This table and ``regions``."""
        added = np.array([_record(region) for region in regions], REGION_RECORD)
        return RegionTable(np.concatenate((self.records, added)))

    def holds(self, memory: str, device: int, lowest: UInt64Array, highest: UInt64Array, longest: int) -> bool:
        """Whether groups of rows surely lie inside one region each: from what address to what address rows of up to so
        many bytes begin.
        """
        span = self._spans.get((memory, device))
        return span is not None and bool(_inside(span, lowest, highest, np.uint64(longest)).all())

    def groups(self, memory: str, device: int, address: UInt64Array) -> Starts:
        """Groups that begin where rising addresses come into another region; of others, they begin anywhere."""
        starts, _ = self._spans.get((memory, device), _NOWHERE)
        begins = np.unique(np.append(np.searchsorted(address, starts), 0))
        return begins[begins < len(address)]

    def first_outside(
        self, memory: str, device: int, address: UInt64Array, nbytes: UInt64Array, groups: Starts | None = None
    ) -> int | None:
        """The first row that does not lie inside one region, or None.

        A row is looked at by itself only where its group does not lie inside one region as a whole. Groups change
        what that costs and nothing else; without them it is every row.
        """
        if len(address) == 0:
            return None
        span = self._spans.get((memory, device))
        if span is None:
            return 0
        if groups is None:
            inside = _inside(span, address, address, nbytes)
            return None if inside.all() else int(np.argmin(inside))
        rows = _in_doubt(span, address, nbytes, groups)
        inside = _inside(span, address[rows], address[rows], nbytes[rows])
        return None if inside.all() else int(rows[np.argmin(inside)])


def _in_doubt(span: Span, address: UInt64Array, nbytes: UInt64Array, groups: Starts) -> Starts:
    """The rows, in order, of groups that do not lie inside one region as a whole."""
    lowest, highest = np.minimum.reduceat(address, groups), np.maximum.reduceat(address, groups)
    inside = _inside(span, lowest, highest, np.maximum.reduceat(nbytes, groups))
    if inside.all():
        return np.zeros(0, np.intp)
    return np.flatnonzero(np.repeat(~inside, np.diff(groups, append=len(address))))


def _inside(
    span: Span, lowest: UInt64Array, highest: UInt64Array, longest: UInt64Array | np.uint64
) -> npt.NDArray[np.bool_]:
    """Which groups of rows surely lie in one region each, by their addresses and the bytes of their longest row.

    Of a group of one row it says exactly whether it does. No sum passes 64 bits.
    """
    starts, ends = span
    slot = np.searchsorted(starts, lowest, side="right") - 1
    end = ends[slot]  # of slot -1: some end, and the group is not inside
    return (slot >= 0) & (highest <= end) & (longest <= end - highest)


def outside_error(rows: ReadRows, source: RegionTable, target: RegionTable) -> TransportError | None:
    """Why the rows may not be read (NOT_REGISTERED), naming the first bad row; None when all lie in one region each."""
    if _repeats_inside(rows, source, target):
        return None
    many = len(rows) >= MANY_ROWS
    groups = source.groups(rows.source_memory, rows.source_device, rows.source_address) if many else None
    sides = (
        ("source", source, rows.source_memory, rows.source_device, rows.source_address),
        ("target", target, rows.target_memory, rows.target_device, rows.target_address),
    )
    for side, table, memory, device, address in sides:
        row = table.first_outside(memory, device, address, rows.nbytes, groups)
        if row is not None:
            return TransportError(
                TransportErrorKind.NOT_REGISTERED,
                f"row {row}: the {side}'s {int(rows.nbytes[row])} bytes at {int(address[row]):#x} are not inside one "
                f"of its {len(table)} registered regions ({memory} {device}); register the memory on the {side} first",
            )
    return None


def _repeats_inside(rows: ReadRows, source: RegionTable, target: RegionTable) -> bool:
    """Whether every repetition of a pattern surely lies inside one region on either side."""
    if rows.repeats is None or len(rows) == 0:
        return False
    pattern = rows.repeats.pattern
    return all(
        table.holds(memory, device, first + distance.min(), first + distance.max(), pattern.longest)
        for table, memory, device, first, distance in (
            (source, rows.source_memory, rows.source_device, rows.repeats.source, pattern.source_address),
            (target, rows.target_memory, rows.target_device, rows.repeats.target, pattern.target_address),
        )
    )


def _record(region: MemoryRegion) -> tuple[int, int, int, int]:
    if region.memory not in MEMORY_KINDS:
        raise _rejected(f"memory kind {region.memory!r} is not known; {', '.join(MEMORY_KINDS)} are")
    if not (0 <= region.address < 2**64 and 0 < region.nbytes < 2**64 and 0 <= region.device < 2**32):
        raise _rejected(
            f"address {region.address:#x}, {region.nbytes} bytes, device {region.device}: one is out of range"
        )
    return region.address, region.nbytes, region.device, MEMORY_KINDS.index(region.memory)


def _span(records: npt.NDArray[np.void]) -> Span:
    ordered = np.sort(records, order="address")
    starts: UInt64Array = ordered["address"].copy()
    ends: UInt64Array = starts + ordered["nbytes"]
    if (ends <= starts).any():
        raise _rejected(f"the region at {int(starts[np.argmax(ends <= starts)]):#x} is empty or passes 64 bits")
    overlaps = np.flatnonzero(starts[1:] < ends[:-1])
    if len(overlaps):
        first = int(overlaps[0])
        raise _rejected(
            f"region [{int(starts[first]):#x}, {int(ends[first]):#x}) overlaps the one at {int(starts[first + 1]):#x}; "
            "register each byte once"
        )
    return starts, ends


def _rejected(message: str) -> TransportError:
    return TransportError(TransportErrorKind.REJECTED, f"regions: {message}")
