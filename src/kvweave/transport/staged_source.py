"""The reader's part of staged reads from one source: asks, looks, reads slots, and scatters them.

Each step looks at the source's status page once, reads slots that are ready, and looks again before it believes what it
has read::

    status:  ticket 7 in slot 2?  -> read slot 2 -> status again: still 7 in slot 2? -> give 7 back, scatter

On shared memory, UCX completes the first read behind a message only when the source has made progress once more. So
messages are few and sent together, and the status is read before scattering, which takes longer than that.

Nothing waits for a source that gathers nothing for ``PATIENCE_SECONDS``: what it has not gathered by then is read
directly, which needs no help of it, and for ``AVOID_SECONDS`` nothing is staged there.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import RingPlace
from kvweave.transport.gather_request import MOST_GIVEN_BACK, NO_RUNS, GatherRequest, Runs
from kvweave.transport.landing import NUM_REFUSED, SLOT_BYTES, Landing
from kvweave.transport.rows import ReadRows, UInt64Array, single
from kvweave.transport.staged_read import MOST_ASKED, Chunk, StagedRead
from kvweave.transport.staging_ring import STATUS_BYTES

WINDOW = 8
"""Chunks that are open at once, over all reads from one source, but no more than the slots that it lets a reader hold.
Further ones are asked for when half of them are read, so that messages go together."""
MOST_STEPS = 16
"""Slots read in one call, where reading is copying; as many bytes as half a round of direct reads has."""
MOST_LOOKS = 60
"""Looks without news in one call, some tenths of a millisecond together. Then others have a turn, which takes
milliseconds where they compute."""
MOST_PREPARED = 128
PATIENCE_SECONDS = 0.5
AVOID_SECONDS = 5.0


class Agent(Protocol):
    """What moves bytes and messages below; ``NixlAgent`` is one. All methods but the last raise ``TransportError``."""

    def prepare(self, peer: str, rows: ReadRows) -> Any:
        """A piece that may be started over and over."""
        ...

    def start(self, piece: Any) -> None:
        """Starts a prepared piece that is not under way."""
        ...

    def is_over(self, piece: Any) -> bool:
        """Whether a piece has ended; raises when it ended badly."""
        ...

    def notify(self, peer: str, message: bytes) -> None:
        """Sends a message."""
        ...

    def release(self, piece: Any) -> None:
        """Gives up a piece that is not under way."""
        ...


class StagedSource:
    """One source's ring, as its reader sees it. ``landing`` is registered already.

    ``lost`` is told when the source is. Pieces are prepared once for each slot and landing, and started again.
    """

    def __init__(
        self,
        peer: str,
        place: RingPlace,
        landing: Landing,
        agent: Agent,
        lost: Callable[[str, TransportError], None],
    ) -> None:
        self.place = place
        self.slot_bytes = min(place.slot_bytes, SLOT_BYTES)
        self._window = max(1, min(WINDOW, place.num_slots // 2))
        self._peer = peer
        self._landing = landing
        self._agent = agent
        self._lost = lost
        self._reads: deque[StagedRead] = deque()
        self._open: dict[int, Chunk] = {}
        self._confirmed: list[Chunk] = []
        self._prepared: dict[tuple[int, int, int], Any] = {}
        self._given_back: deque[int] = deque()
        self._status_row = landing.free_status.pop()
        self._status_piece: Any = None
        self._looking = False
        self._leaving = False
        self._heard_at = 0.0
        self._avoid_until = 0.0

    @property
    def busy(self) -> bool:
        """Whether it has anything to do."""
        return bool(self._reads or self._open or self._given_back or self._looking)

    def leave(self) -> None:
        """The peer is being forgotten: nothing is posted any more."""
        self._leaving = True

    def settled(self) -> bool:
        """Whether the peer may be forgotten, or is not to be: nothing of it is being read any more."""
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

    def usable(self, now: float) -> bool:
        """Whether it has not let anybody wait lately."""
        return now >= self._avoid_until

    def begin(self, rows: ReadRows) -> StagedRead:
        """A read of these rows."""
        read = StagedRead(self._peer, rows, self.slot_bytes, self.settled)
        self._reads.append(read)
        return read

    def advance(self, now: float) -> None:
        """Does what can be done at once, and looks a few times more for what comes next."""
        steps, looks = 0, 0
        try:
            while steps < MOST_STEPS and looks < MOST_LOOKS:
                if self._step(now):
                    steps += 1
                elif self._open:
                    looks += 1
                else:
                    break
        except TransportError as error:
            self._fail(error, now)

    def end(self) -> None:
        """Gives up what it holds, once nothing of it is under way."""
        for chunk in self._open.values():
            self._free(chunk)
        for piece in self._prepared.values():
            self._agent.release(piece)
        self._open.clear()
        self._reads.clear()
        if self._status_piece is not None:
            self._agent.release(self._status_piece)
        self._landing.free_status.append(self._status_row)

    def _step(self, now: float) -> bool:
        """Looks, asks, scatters and reads; whether the next step may do more at once."""
        ready: list[Chunk] = []
        if self._looking and self._agent.is_over(self._status_piece):
            self._looking = False
            ready = self._look(now)
        self._forget_unwanted()
        if self._silent(now):
            self._lose_patience(now)
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

    def _silent(self, now: float) -> bool:
        """Whether the source lets the reader wait for too long."""
        waits = bool(self._open) and not any(chunk.piece for chunk in self._open.values())
        return waits and now - self._heard_at > PATIENCE_SECONDS

    def _look(self, now: float) -> list[Chunk]:
        """Does what the status says, but for copying: the chunks whose slots are to be read."""
        status = self._landing.status(self._status_row)
        tickets = status[: self.place.num_slots].tolist()
        refused = status[self.place.num_slots : self.place.num_slots + NUM_REFUSED].tolist()
        ready = []
        for chunk in tuple(self._open.values()):
            if chunk.landed:
                self._heard_at = now
                if self._is_confirmed(chunk, tickets[chunk.slot]):
                    self._confirmed.append(chunk)
            elif chunk.piece is None and chunk.ticket in tickets:
                chunk.slot = tickets.index(chunk.ticket)
                ready.append(chunk)
            elif chunk.piece is None and chunk.ticket in refused:
                chunk.read.read_directly(chunk.part)
                self._close(chunk)
        if ready:
            self._heard_at = now
        return ready

    def _is_confirmed(self, chunk: Chunk, ticket: int) -> bool:
        """Whether a chunk that has landed is to be scattered; one that was overtaken is gathered once more."""
        if not chunk.read.wanted:
            return False
        self._give_back(chunk)
        if ticket == chunk.ticket:
            return True
        if chunk.times_asked < MOST_ASKED:
            chunk.read.unasked.append((chunk.part, chunk.times_asked))
        else:
            chunk.read.read_directly(chunk.part)
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
        place = (chunk.slot, chunk.landing, chunk.part.target.nbytes)
        piece = self._prepared.pop(place, None)
        if piece is None:
            source = self.place.address + STATUS_BYTES + chunk.slot * self.place.slot_bytes
            target = self._landing.slot(chunk.landing).ctypes.data
            piece = self._agent.prepare(
                self._peer, ReadRows(single(source), single(target), single(chunk.part.target.nbytes))
            )
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

    def _forget_unwanted(self) -> None:
        """Drops what belongs to doomed reads, once nothing of it is under way, and reads that ask for no more."""
        for chunk in tuple(self._open.values()):
            if not chunk.read.wanted and (chunk.piece is None or self._is_read(chunk)):
                self._close(chunk)
        self._reads = deque(read for read in self._reads if read.wanted and (read.unasked or read.open))

    def _ask(self, now: float) -> bool:
        """Asks for chunks of one read after the other, as far as the window is open, and gives tickets back; whether
        there was anything to say.
        """
        before = len(self._open)
        if not self._open:
            self._heard_at = now
        if len(self._open) <= self._window // 2:
            for _ in range(len(self._reads)):
                read = self._reads[0]
                while read.unasked and len(self._open) < self._window:
                    self._ask_for(read)
                self._reads.rotate(-1)
        while self._given_back and not self._open:
            self._send(0, 0, NO_RUNS)
        return len(self._open) > before

    def _ask_for(self, read: StagedRead) -> None:
        part, times_asked = read.next_part()
        chunk = Chunk(read, part, secrets.randbits(64) | 1, times_asked + 1)
        read.open += 1
        self._open[chunk.ticket] = chunk
        self._send(chunk.ticket, part.target.size, part.source)

    def _send(self, ticket: int, piece_bytes: int, runs: Runs) -> None:
        given_back = [self._given_back.popleft() for _ in range(min(len(self._given_back), MOST_GIVEN_BACK))]
        self._agent.notify(self._peer, GatherRequest(ticket, piece_bytes, runs, tuple(given_back)).encode())

    def _close(self, chunk: Chunk) -> None:
        """The chunk needs its ticket and its landing no more. What else is to become of its rows is said before: this
        may end the read.
        """
        self._give_back(chunk)
        self._settle(chunk)

    def _give_back(self, chunk: Chunk) -> None:
        """The source may use the chunk's slot again."""
        del self._open[chunk.ticket]
        self._given_back.append(chunk.ticket)

    def _settle(self, chunk: Chunk) -> None:
        """Nothing of the chunk is left here."""
        self._free(chunk)
        if chunk.read.wanted:
            chunk.read.open -= 1
        chunk.read.end_if_over()

    def _free(self, chunk: Chunk) -> None:
        if chunk.landing >= 0:
            self._landing.free_slots.append(chunk.landing)
        if chunk.piece is not None:
            replaced = self._prepared.get((chunk.slot, chunk.landing, chunk.part.target.nbytes))
            self._prepared[chunk.slot, chunk.landing, chunk.part.target.nbytes] = chunk.piece
            if replaced is not None:
                self._agent.release(replaced)
        chunk.landing, chunk.piece = -1, None
        if len(self._prepared) > MOST_PREPARED:
            self._agent.release(self._prepared.pop(next(iter(self._prepared))))

    def _lose_patience(self, now: float) -> None:
        """Reads directly whatever was not gathered, or cannot be confirmed."""
        self._avoid_until = now + AVOID_SECONDS
        for chunk in tuple(self._open.values()):
            if not chunk.under_way:
                chunk.read.read_directly(chunk.part)
                self._close(chunk)
        for read in self._reads:
            read.read_rest_directly()

    def _post_status(self) -> None:
        if self._status_piece is None:
            row: UInt64Array = self._landing.status(self._status_row)
            nbytes = 8 * (self.place.num_slots + NUM_REFUSED)
            rows = ReadRows(single(self.place.address), single(row.ctypes.data), single(nbytes))
            self._status_piece = self._agent.prepare(self._peer, rows)
        self._agent.start(self._status_piece)
        self._looking = True

    def _fail(self, error: TransportError, now: float) -> None:
        """The source is gone, or its ring cannot be used. What was confirmed before is scattered, if it is wanted."""
        self._looking = False
        if error.kind is TransportErrorKind.PEER_LOST:
            self._lost(self._peer, error)
        else:
            self._lose_patience(now)
            self._given_back.clear()
        self._scatter_confirmed()
