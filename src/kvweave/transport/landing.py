"""The reader's part of memory for staged reads: where slots of peers' rings land before they are scattered.

Status rows, one per peer with a ring, a few slots that all peers share, and one for trials, whose bytes nobody looks
at. What is free last is used next, because it is still in the processor's cache.
"""

from __future__ import annotations

import numpy as np

from kvweave.transport.agent_data import MOST_RING_SLOTS
from kvweave.transport.pieces import ByteArray
from kvweave.transport.rows import UInt64Array
from kvweave.transport.staging_ring import NUM_REFUSED, SLOT_BYTES

NUM_LANDINGS = 8
MOST_STATUS_ROWS = 64


class Landing:
    """Memory to register; slots and status rows are taken and given back by number."""

    def __init__(self) -> None:
        status_bytes = 8 * (MOST_RING_SLOTS + NUM_REFUSED)
        self.memory: ByteArray = np.empty(MOST_STATUS_ROWS * status_bytes + (NUM_LANDINGS + 1) * SLOT_BYTES, np.uint8)
        head = self.memory[: MOST_STATUS_ROWS * status_bytes]
        head[:] = 0
        self._status: UInt64Array = head.view(np.uint64).reshape(MOST_STATUS_ROWS, -1)
        self._slots = self.memory[head.nbytes :].reshape(NUM_LANDINGS + 1, SLOT_BYTES)
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
