"""Staged reads from a source whose ring is not mapped: slots are read, each in one large read, and scattered.

Each step looks at the source's status page once, reads slots that are ready, and looks again before it believes what it
has read::

    status:  ticket 7 in slot 2?  -> read slot 2 -> status again: still 7 in slot 2? -> give 7 back, scatter

On shared memory, UCX completes the first read behind a message only when the source has made progress once more. So
messages are few and sent together, and the status is read before scattering, which takes longer than that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kvweave.errors import TransportError
from kvweave.transport.agent_data import RingPlace
from kvweave.transport.landing import NUM_REFUSED, Landing
from kvweave.transport.rows import ReadRows, UInt64Array, single
from kvweave.transport.staged_read import Chunk
from kvweave.transport.staged_source import Agent, Lost, StagedSource
from kvweave.transport.staging_ring import slot_offset

MOST_PREPARED = 128


class ReadSource(StagedSource):
    """A ring whose slots are read into ``landing``, which is registered already.

    Pieces are prepared once for each slot and landing, and started again.
    """

    mapped = False

    def __init__(self, peer: str, place: RingPlace, landing: Landing, agent: Agent, lost: Lost) -> None:
        super().__init__(peer, place, agent, lost)
        self._landing = landing
        self._confirmed: list[Chunk] = []
        self._prepared: dict[tuple[int, int, int], Any] = {}
        self._status_row = landing.free_status.pop()
        self._status_piece: Any = None
        self._looking = False

    @property
    def busy(self) -> bool:
        """See ``StagedSource``."""
        return self._looking or super().busy

    def settled(self) -> bool:
        """See ``StagedSource``."""
        if not self._leaving:
            return True
        try:
            self._looking = self._looking and not self._agent.is_over(self._status_piece)
        except TransportError:
            self._looking = False
        for chunk in self._open.values():
            with suppress(TransportError):
                self._is_read(chunk)
        return not self._looking and not any(chunk.under_way for chunk in self._open.values())

    def end(self) -> None:
        """See ``StagedSource``."""
        for chunk in self._open.values():
            self._free(chunk)
        super().end()
        for piece in self._prepared.values():
            self._agent.release(piece)
        self._prepared.clear()
        if self._status_piece is not None:
            self._agent.release(self._status_piece)
        self._status_piece = None
        self._landing.free_status.append(self._status_row)

    def _step(self, now: float) -> bool:
        ready: list[Chunk] = []
        if self._looking and self._agent.is_over(self._status_piece):
            self._looking = False
            ready = self._look(now)
        self._forget_unwanted()
        self._mind_patience(now)
        if self._looking:
            return False
        asked = self._ask(now)
        if asked and self._open:
            self._post_status()
        scattered = self._scatter_confirmed()
        if asked or not self._open:
            return scattered
        self._read_slots(ready)
        for chunk in self._open.values():
            chunk.landed = self._is_read(chunk)
        self._post_status()
        return scattered or any(chunk.landed for chunk in self._open.values())

    def _waits(self) -> bool:
        return super()._waits() and not any(chunk.piece for chunk in self._open.values())

    def _look(self, now: float) -> list[Chunk]:
        """Does what the status says, but for copying: the chunks whose slots are to be read."""
        status = self._landing.status(self._status_row)
        tickets = status[: self.place.num_slots].tolist()
        refused = status[self.place.num_slots : self.place.num_slots + NUM_REFUSED].tolist()
        ready = []
        for chunk in tuple(self._open.values()):
            if chunk.ticket not in self._open:
                continue  # its batch was refused
            if chunk.landed:
                self._heard_at = now
                if self._is_confirmed(chunk, tickets[chunk.slot]):
                    self._confirmed.append(chunk)
            elif chunk.piece is None and chunk.shown in tickets:
                chunk.slot = tickets.index(chunk.shown)
                ready.append(chunk)
            elif chunk.piece is None and chunk.shown in refused:
                self._read_refused(chunk)
        if ready:
            self._heard_at = now
        return ready

    def _is_confirmed(self, chunk: Chunk, ticket: int) -> bool:
        """Whether a chunk that has landed is to be scattered; one that was overtaken is gathered once more."""
        if not chunk.read.wanted:
            return False
        self._give_back(chunk)
        if ticket == chunk.shown:
            return True
        self._overtaken(chunk)
        self._settle(chunk)
        return False

    def _scatter_confirmed(self) -> bool:
        """Scatters what may be scattered, as far as it is still of use; whether there was anything."""
        confirmed, self._confirmed = self._confirmed, []
        for chunk in confirmed:
            if chunk.read.wanted:
                chunk.part.target.scatter(self._landing.slot(chunk.landing))
            self._settle(chunk)
        return bool(confirmed)

    def _read_slots(self, ready: list[Chunk]) -> None:
        """Reads slots; just one where reading is copying, so that its bytes are scattered from the cache."""
        for chunk in ready:
            if not chunk.read.wanted:
                continue
            if not self._landing.free_slots:
                return
            self._read_slot(chunk)
            if self._is_read(chunk):
                return

    def _read_slot(self, chunk: Chunk) -> None:
        chunk.landing = self._landing.free_slots.pop()
        place = (chunk.slot, chunk.landing, chunk.part.nbytes)
        piece = self._prepared.pop(place, None)
        if piece is None:
            source = self.place.address + slot_offset(self.place, chunk.slot)
            target = self._landing.slot(chunk.landing).ctypes.data
            piece = self._agent.prepare(self._peer, ReadRows(single(source), single(target), single(chunk.part.nbytes)))
        try:
            self._agent.start(piece)
        except TransportError:
            self._agent.release(piece)
            raise
        chunk.piece, chunk.under_way = piece, True
        chunk.read.under_way += 1

    def _is_read(self, chunk: Chunk) -> bool:
        """Whether the chunk's slot was read; one whose reading ended badly is as if it had not begun."""
        if not chunk.under_way:
            return chunk.piece is not None
        try:
            chunk.under_way = not self._agent.is_over(chunk.piece)
        except TransportError:
            chunk.under_way = False
            self._agent.release(chunk.piece)
            chunk.piece = None
            raise
        finally:
            chunk.read.under_way -= not chunk.under_way
        return not chunk.under_way

    def _may_close(self, chunk: Chunk) -> bool:
        return chunk.piece is None or self._is_read(chunk)

    def _settle(self, chunk: Chunk) -> None:
        self._free(chunk)
        super()._settle(chunk)

    def _free(self, chunk: Chunk) -> None:
        if chunk.landing >= 0:
            self._landing.free_slots.append(chunk.landing)
        if chunk.piece is not None:
            replaced = self._prepared.get((chunk.slot, chunk.landing, chunk.part.nbytes))
            self._prepared[chunk.slot, chunk.landing, chunk.part.nbytes] = chunk.piece
            if replaced is not None:
                self._agent.release(replaced)
        chunk.landing, chunk.piece = -1, None
        if len(self._prepared) > MOST_PREPARED:
            self._agent.release(self._prepared.pop(next(iter(self._prepared))))

    def _post_status(self) -> None:
        if self._status_piece is None:
            row: UInt64Array = self._landing.status(self._status_row)
            nbytes = 8 * (self.place.num_slots + NUM_REFUSED)
            rows = ReadRows(single(self.place.address), single(row.ctypes.data), single(nbytes))
            self._status_piece = self._agent.prepare(self._peer, rows)
        self._agent.start(self._status_piece)
        self._looking = True

    def _fail(self, error: TransportError, now: float) -> None:
        """What was confirmed before is scattered, if it is wanted."""
        self._looking = False
        super()._fail(error, now)
        self._scatter_confirmed()
