"""The source's part of staged reads: gathers what readers ask for into slots that they read at once.

::

    ring   status page                                            slot 0   slot 1 ...
           [ticket of slot 0, of slot 1 ... | refused ... | probe]  [bytes]  [bytes]

What is shown of a slot's ticket is written when its bytes are there, and taken away before it is filled anew. So a
reader that finds it both before and after it has read the slot has the right bytes, whatever else happens here: a
ticket is used once, and nobody else can ask under it. Readers on this machine may map the ring; the probe tells them
whose it is, and that it is still served.
All else is for liveness. Readers wait in a queue each and are served in turn; one may hold half of the slots; a slot
that nobody gave back is taken when it is needed and has been ready for ``RECLAIM_SECONDS``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvweave.errors import RemoteProtocolError
from kvweave.transport.agent_data import PROBE_BYTES, RingPlace
from kvweave.transport.gather_request import GatherRequest, shown
from kvweave.transport.landing import NUM_REFUSED, SLOT_BYTES
from kvweave.transport.pieces import Pieces
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import UInt64Array
from kvweave.transport.shared_memory import SharedMemory

NUM_SLOTS = 16
STATUS_BYTES = 4_096
PROBE_AT = STATUS_BYTES - PROBE_BYTES
RECLAIM_SECONDS = 1.0
ATTENDED_SECONDS = 0.002
"""How long a reader is busy with half of what it may hold: until then it will say something again."""
MOST_WAITING = 16
MOST_READERS = 256
MOST_MESSAGES = 64
"""Messages of one reader that are read in one round; it never sends as many."""
MOST_QUEUED = 256
"""Slots that are waited for, of all readers."""


def slot_offset(place: RingPlace, number: int) -> int:
    """Where a slot begins in its ring; of the slot behind the last one, where the ring ends."""
    return STATUS_BYTES + number * place.slot_bytes


@dataclass(slots=True)
class _Slot:
    number: int
    ticket: int = 0
    reader: str = ""
    ready_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    ticket: int
    pieces: Pieces


@dataclass(slots=True)
class _Reader:
    waiting: deque[_Wanted] = field(default_factory=deque)
    held: int = 0


class StagingRing:
    """Slots and who has them. ``counts`` says what became of messages: gathered, refused, malformed, reclaimed, unread.

    ``probe`` is the transport's.
    """

    def __init__(self, probe: bytes, num_slots: int = NUM_SLOTS, slot_bytes: int = SLOT_BYTES) -> None:
        self._shared = SharedMemory(STATUS_BYTES + num_slots * slot_bytes)
        self.memory = self._shared.memory
        self.place = RingPlace(self.memory.ctypes.data, num_slots, slot_bytes, self._shared.file)
        self._probe = self.memory[PROBE_AT : PROBE_AT + len(probe)]
        self._probe[:] = np.frombuffer(probe, np.uint8)
        self.counts: Counter[str] = Counter()
        self._tickets: UInt64Array = self.memory[: 8 * num_slots].view(np.uint64)
        self._refused: UInt64Array = self.memory[8 * num_slots : 8 * (num_slots + NUM_REFUSED)].view(np.uint64)
        self._slots = [_Slot(number) for number in range(num_slots)]
        self._free = list(self._slots)
        self._held: dict[int, _Slot] = {}
        self._readers: dict[str, _Reader] = {}
        self._served_at = -ATTENDED_SECONDS

    def serve(self, messages: Mapping[str, Sequence[bytes]], regions: RegionTable, now: float) -> bool:
        """Takes readers' messages, by reader, and gathers once, for the next that waits and may have a slot.

        What is malformed is counted, what cannot be served is refused. Returns whether there was anything to do.
        """
        for name, sent in messages.items():
            for message in sent[:MOST_MESSAGES]:
                self._take(name, message, regions)
            self.counts["unread"] += len(sent[MOST_MESSAGES:])
        served = any(self._serve(name, now) for name in tuple(self._readers))
        for name in [name for name, reader in self._readers.items() if not reader.waiting and not reader.held]:
            del self._readers[name]
        return served

    def close(self) -> None:
        """Nobody is served any more; a process that was forked from this one says nothing about it."""
        if self._shared.owned:
            self._probe[:] = 0
        self._shared.close()

    def attended(self, now: float) -> bool:
        """Whether a reader was served just now, and will soon say something again."""
        return now - self._served_at < ATTENDED_SECONDS

    def _take(self, name: str, message: bytes, regions: RegionTable) -> None:
        tickets = range(1)  # what is malformed has ticket 0
        try:
            request = GatherRequest.decode(message)
            for given_back in request.given_back:
                self._give_back(name, given_back)
            if request.ticket:
                tickets = request.tickets
                self._require_room(name, tickets)
                slots = request.slots(regions, self.place.slot_bytes)
                self._readers.setdefault(name, _Reader()).waiting.extend(map(_Wanted, tickets, slots))
        except RemoteProtocolError:
            for ticket in tickets:
                self._refuse(ticket)

    def _require_room(self, name: str, tickets: range) -> None:
        """Raises ``RemoteProtocolError`` when so many more may not wait, or a ticket is known."""
        if name not in self._readers and len(self._readers) >= MOST_READERS:
            raise RemoteProtocolError(f"gather request: more than {MOST_READERS} readers")
        own = len(self._readers[name].waiting) if name in self._readers else 0
        waiting = {wanted.ticket for reader in self._readers.values() for wanted in reader.waiting}
        if own + len(tickets) > MOST_WAITING or len(waiting) + len(tickets) > MOST_QUEUED:
            raise RemoteProtocolError(f"gather request: {own} of this reader and {len(waiting)} of all readers wait")
        if not (waiting | self._held.keys()).isdisjoint(tickets):
            raise RemoteProtocolError("gather request: its ticket is known")

    def _refuse(self, ticket: int) -> None:
        self.counts["refused" if ticket else "malformed"] += 1
        if ticket and ticket not in self._held:
            self._refused[self.counts["refused"] % NUM_REFUSED] = shown(ticket)

    def _give_back(self, name: str, ticket: int) -> None:
        """The reader needs the ticket no more, whether it was served or still waits."""
        reader = self._readers.get(name)
        slot = self._held.get(ticket)
        if slot is not None and slot.reader == name:
            self._empty(slot)
        elif reader is not None:
            reader.waiting = deque(wanted for wanted in reader.waiting if wanted.ticket != ticket)

    def _serve(self, name: str, now: float) -> bool:
        """Gathers for the reader once, when it waits and there is a slot for it; then it is the others' turn."""
        reader = self._readers[name]
        slot = self._slot_for(name, reader, now) if reader.waiting else None
        if slot is None:
            return False
        self._readers[name] = self._readers.pop(name)
        wanted = reader.waiting.popleft()
        start = slot_offset(self.place, slot.number)
        wanted.pieces.gather(self.memory[start : start + self.place.slot_bytes])
        slot.ticket, slot.reader, slot.ready_at = wanted.ticket, name, now
        self._held[wanted.ticket] = slot
        reader.held += 1
        self._tickets[slot.number] = shown(wanted.ticket)
        self._served_at = now
        self.counts["gathered"] += 1
        return True

    def _slot_for(self, name: str, reader: _Reader, now: float) -> _Slot | None:
        within = reader.held < max(1, len(self._slots) // 2)
        if not within or not self._free:
            stale = (slot for slot in self._held.values() if now - slot.ready_at > RECLAIM_SECONDS)
            oldest = next((slot for slot in stale if within or slot.reader == name), None)
            if oldest is None:
                return None
            self.counts["reclaimed"] += 1
            self._empty(oldest)
        return self._free.pop()

    def _empty(self, slot: _Slot) -> None:
        self._tickets[slot.number] = 0
        del self._held[slot.ticket]
        if slot.reader in self._readers:
            self._readers[slot.reader].held -= 1
        slot.ticket = 0
        self._free.append(slot)
