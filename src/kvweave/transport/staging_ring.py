"""The source's part of staged reads: gathers what readers ask for into slots that they read at once.

::

    ring   status page                                            slot 0   slot 1 ...
           [ticket of slot 0, of slot 1 ... | refused ... | probe]  [bytes]  [bytes]

What is shown of a slot's ticket is written when its bytes are there, and taken away before it is filled anew. So a
reader that finds it both before and after it has read the slot has the right bytes, whatever else happens here: a
ticket is used once, and nobody else can ask under it. Readers on this machine may map the ring; the probe tells them
whose it is, and that it is still served.
All else is for liveness. Readers are served in turn, and so are the requests of one, a slot each; one may hold half of
the slots. A slot that was not given back is taken when another request needs it and it has been ready for
``RECLAIM_SECONDS``; then all else that its request waits for is refused. So is what one waits for who holds all that
he may and is silent for ``SILENT_SECONDS``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvweave.errors import RemoteProtocolError
from kvweave.transport.agent_data import PROBE_BYTES, RingPlace
from kvweave.transport.gather_request import GatherRequest, shown
from kvweave.transport.gathering import Gathering
from kvweave.transport.landing import NUM_REFUSED, SLOT_BYTES
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import UInt64Array
from kvweave.transport.shared_memory import SharedMemory

NUM_SLOTS = 8
STATUS_BYTES = 4_096
PROBE_AT = STATUS_BYTES - PROBE_BYTES
RECLAIM_SECONDS = 1.0
ATTENDED_SECONDS = 0.002
"""How long a reader is busy with half of what it may hold: until then it will say something again."""
SILENT_SECONDS = 10.0
MOST_WAITING = 16
"""Requests of one reader that are not gathered as a whole yet."""
MOST_READERS = 256
MOST_MESSAGES = 64
"""Messages of one reader that are read in one round; it never sends as many."""
MOST_QUEUED = 1 << 22
"""Addresses that are kept for requests of all readers."""


def slot_offset(place: RingPlace, number: int) -> int:
    """Where a slot begins in its ring; of the slot behind the last one, where the ring ends."""
    return STATUS_BYTES + number * place.slot_bytes


@dataclass(slots=True)
class _Slot:
    number: int
    ticket: int = 0
    reader: str = ""
    request: _Request | None = None
    ready_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Request:
    """What is gathered under ``tickets``, of which the first ``served`` are."""

    tickets: range
    gathering: Gathering
    served: int = 0

    @property
    def waiting(self) -> range:
        """The tickets that are not gathered yet."""
        return self.tickets[self.served :]


@dataclass(slots=True)
class _Reader:
    requests: deque[_Request] = field(default_factory=deque)
    held: int = 0
    heard_at: float = 0.0


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
                self._take(name, message, regions, now)
            self.counts["unread"] += len(sent[MOST_MESSAGES:])
        served = any(self._serve(name, now) for name in tuple(self._readers))
        for name in [name for name, reader in self._readers.items() if not reader.requests and not reader.held]:
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

    def _take(self, name: str, message: bytes, regions: RegionTable, now: float) -> None:
        ticket = 0  # of what is malformed
        if name in self._readers:
            self._readers[name].heard_at = now
        try:
            request = GatherRequest.decode(message)
            for given_back in request.given_back:
                self._give_back(name, given_back)
            if request.ticket:
                ticket = request.ticket
                self._require_room(name, request.tickets)
                found = _Request(request.tickets, Gathering(request, regions, self.place.slot_bytes))
                self._readers.setdefault(name, _Reader(heard_at=now)).requests.append(found)
        except RemoteProtocolError:
            self._refuse(ticket)

    def _require_room(self, name: str, tickets: range) -> None:
        """Raises ``RemoteProtocolError`` when one more may not wait, or a ticket is known."""
        if name not in self._readers and len(self._readers) >= MOST_READERS:
            raise RemoteProtocolError(f"gather request: more than {MOST_READERS} readers")
        own = len(self._readers[name].requests) if name in self._readers else 0
        requests = [request for reader in self._readers.values() for request in reader.requests]
        queued = sum(request.gathering.weight for request in requests)
        if own >= MOST_WAITING or queued >= MOST_QUEUED:
            raise RemoteProtocolError(f"gather request: {own} of this reader wait, {queued} addresses of all readers")
        waiting = [request.waiting for request in requests]
        if any(max(one.start, tickets.start) < min(one.stop, tickets.stop) for one in waiting) or any(
            ticket in tickets for ticket in self._held
        ):
            raise RemoteProtocolError("gather request: its ticket is known")

    def _refuse(self, ticket: int) -> None:
        """Shows the first ticket of a request, or of its rest, that is not gathered."""
        self.counts["refused" if ticket else "malformed"] += 1
        if ticket and ticket not in self._held:
            self._refused[self.counts["refused"] % NUM_REFUSED] = shown(ticket)

    def _give_back(self, name: str, ticket: int) -> None:
        """The reader needs the ticket no more; if it still waits, nor those of its request that follow."""
        reader = self._readers.get(name)
        slot = self._held.get(ticket)
        if slot is not None and slot.reader == name:
            self._empty(slot)
        elif reader is not None:
            reader.requests = deque(request for request in reader.requests if ticket not in request.waiting)

    def _serve(self, name: str, now: float) -> bool:
        """Gathers one slot for the reader, when it waits and there is one for it; then it is the others' turn."""
        reader = self._readers[name]
        for request in tuple(reader.requests):
            slot = self._slot_for(name, reader, request, now)
            if slot is not None:
                self._readers[name] = self._readers.pop(name)
                reader.requests.remove(request)
                self._gather(name, reader, request, slot, now)
                return True
        if self._has_his_share(reader) and now - reader.heard_at > SILENT_SECONDS:
            while reader.requests:
                self._refuse(reader.requests.popleft().waiting[0])
        return False

    def _gather(self, name: str, reader: _Reader, request: _Request, slot: _Slot, now: float) -> None:
        ticket = request.waiting[0]
        try:
            pieces = request.gathering.pieces(request.served)
        except RemoteProtocolError:
            self._free.append(slot)
            self._refuse(ticket)
            return
        start = slot_offset(self.place, slot.number)
        pieces.gather(self.memory[start : start + self.place.slot_bytes])
        slot.ticket, slot.reader, slot.request, slot.ready_at = ticket, name, request, now
        self._held[ticket] = slot
        reader.held += 1
        self._tickets[slot.number] = shown(ticket)
        self._served_at = now
        self.counts["gathered"] += 1
        request.served += 1
        if request.waiting:
            reader.requests.append(request)

    def _slot_for(self, name: str, reader: _Reader, request: _Request, now: float) -> _Slot | None:
        """A free slot, or one that was not given back for long: of anybody, or of this reader where he has his share.
        No request takes its own: its reader may have been stopped, and go on with what is there.
        """
        full = self._has_his_share(reader)
        if full or not self._free:
            for slot in self._held.values():
                stale = now - slot.ready_at > RECLAIM_SECONDS and slot.request is not request
                if stale and (not full or slot.reader == name):
                    self._reclaim(slot)
                    break
            else:
                return None
        return self._free.pop()

    def _has_his_share(self, reader: _Reader) -> bool:
        return reader.held >= max(1, len(self._slots) // 2)

    def _reclaim(self, slot: _Slot) -> None:
        ticket, request, owner = slot.ticket, slot.request, self._readers.get(slot.reader)
        self._empty(slot)
        self.counts["reclaimed"] += 1
        self._refuse(ticket)
        if owner is not None:
            owner.requests = deque(other for other in owner.requests if other is not request)

    def _empty(self, slot: _Slot) -> None:
        self._tickets[slot.number] = 0
        del self._held[slot.ticket]
        if slot.reader in self._readers:
            self._readers[slot.reader].held -= 1
        slot.ticket, slot.request = 0, None
        self._free.append(slot)
