"""Staged reads from a source on this machine, whose ring the reader has mapped: slots are scattered where they lie.

::

    ticket 7 in slot 2?  -> scatter slot 2 -> still 7 in slot 2? -> give 7 back

A chunk whose slot was another's before all of it was scattered is gathered once more, over what was written; a read
is done when all its chunks were right. So source and reader copy a byte once each, at the same time, and say nothing
to each other but what is to be gathered.
"""

from __future__ import annotations

import platform

from kvweave.transport.agent_data import RingPlace
from kvweave.transport.landing import NUM_REFUSED
from kvweave.transport.rows import UInt64Array
from kvweave.transport.shared_memory import MappedMemory
from kvweave.transport.staged_read import Chunk
from kvweave.transport.staged_source import Agent, Lost, StagedSource
from kvweave.transport.staging_ring import PROBE_AT, slot_offset

_ORDERED = "x86_64"


def map_ring(place: RingPlace, process: int, probe: bytes) -> MappedMemory | None:
    """The ring of a transport of that process, if it is on this machine and may be mapped.

    Only where a processor sees what another one writes in the order of writing: a ticket must not be seen before its
    bytes. Elsewhere slots are read by the system or by NIXL, which see to that.
    """
    if platform.machine() != _ORDERED:
        return None
    return MappedMemory.of(process, place.file, slot_offset(place, place.num_slots), probe, PROBE_AT)


class MappedSource(StagedSource):
    """A ring that this process has mapped as ``ring``."""

    mapped = True

    def __init__(self, peer: str, place: RingPlace, ring: MappedMemory, agent: Agent, lost: Lost) -> None:
        super().__init__(peer, place, agent, lost)
        self._ring = ring
        self._status: UInt64Array = ring.memory[: 8 * (place.num_slots + NUM_REFUSED)].view("u8")

    def end(self) -> None:
        """See ``StagedSource``. The ring is mapped no more, whoever still has reads of it."""
        super().end()
        self._ring.close()
        del self._ring, self._status

    def _step(self, now: float) -> bool:
        self._forget_unwanted()
        asked = self._ask(now)
        status = self._status.tolist()
        for chunk in tuple(self._open.values()):
            if chunk.shown not in status:
                continue
            self._heard_at = now
            slot = status.index(chunk.shown)
            if slot < self.place.num_slots:
                self._take(chunk, slot)
            else:
                self._read_refused(chunk)
            return True
        self._mind_patience(now)
        return asked

    def _lives(self) -> bool:
        return self._ring.alive

    def _take(self, chunk: Chunk, slot: int) -> None:
        """Scatters a slot, which must still be the chunk's afterwards."""
        start = slot_offset(self.place, slot)
        chunk.part.target.scatter(self._ring.memory[start : start + chunk.part.nbytes])
        if self._status[slot] != chunk.shown:
            self._overtaken(chunk)
        self._close(chunk)
