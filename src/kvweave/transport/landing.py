"""Memory for staged reads: large pages, and where slots of peers' rings land at the reader.

The landing is status rows, one per peer with a ring, a few slots that all peers share, and one for trials, whose bytes
nobody looks at. What is free last is used next, because it is still in the processor's cache.
"""

from __future__ import annotations

import mmap

import numpy as np

from kvweave.transport.agent_data import MOST_RING_SLOTS
from kvweave.transport.pieces import ByteArray
from kvweave.transport.rows import UInt64Array

SLOT_BYTES = 4 << 20
LEAST_CHUNK_BYTES = 256 << 10
NUM_REFUSED = 16
"""Tickets of requests that were refused, at the end of a status row."""
NUM_LANDINGS = 4
MOST_STATUS_ROWS = 64
_LARGE_PAGE_BYTES = 2 << 20
_CHUNKS = 16


def chunk_bytes(nbytes: int, slot_bytes: int) -> int:
    """How much of a read is gathered at once: less in a small read, so that its parts overlap there too."""
    return min(slot_bytes, max(LEAST_CHUNK_BYTES, nbytes // _CHUNKS))


def large_pages(nbytes: int) -> ByteArray:
    """Zeros on pages of 2 MB, where the system has them: reading them takes half of the time over shared memory."""
    mapped = mmap.mmap(-1, nbytes + _LARGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % _LARGE_PAGE_BYTES
    memory = memory[start : start + nbytes]
    memory[:] = 0
    return memory


class Landing:
    """Memory to register; slots and status rows are taken and given back by number."""

    def __init__(self) -> None:
        status_bytes = 8 * (MOST_RING_SLOTS + NUM_REFUSED)
        slots_bytes = (NUM_LANDINGS + 1) * SLOT_BYTES
        self.memory = large_pages(slots_bytes + MOST_STATUS_ROWS * status_bytes)
        self._slots = self.memory[:slots_bytes].reshape(NUM_LANDINGS + 1, SLOT_BYTES)
        self._status: UInt64Array = self.memory[slots_bytes:].view(np.uint64).reshape(MOST_STATUS_ROWS, -1)
        self.free_slots = list(range(NUM_LANDINGS))
        self.free_status = list(range(MOST_STATUS_ROWS))

    def slot(self, number: int) -> ByteArray:
        """The slot's bytes."""
        memory: ByteArray = self._slots[number]
        return memory

    @property
    def for_trials(self) -> ByteArray:
        """The slot that is never free."""
        return self.slot(NUM_LANDINGS)

    def status(self, number: int) -> UInt64Array:
        """The status row's words."""
        row: UInt64Array = self._status[number]
        return row
