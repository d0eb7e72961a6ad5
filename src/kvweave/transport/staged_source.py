"""The reader's part of staged reads from one source: asks, takes what was gathered, and gives it back.

How slots come to the reader is the affair of two kinds: those that are read (``read_source``), and those that lie in
memory that both share (``mapped_source``).

Nothing waits for a source that gathers nothing for ``PATIENCE_SECONDS``: what it has not gathered by then is read
directly, which needs no help of it, and for ``AVOID_SECONDS`` nothing is staged there.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import RingPlace
from kvweave.transport.gather_request import MOST_GIVEN_BACK, GatherRequest, shown
from kvweave.transport.landing import SLOT_BYTES
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_read import MOST_ASKED, Asked, Chunk, StagedRead

WINDOW = 8
"""Chunks of one batch that are open at once, but no more than the slots that the source lets a reader hold. Tickets are
given back when half of them are read, so that messages are few."""
MOST_BATCHES = 8
"""Batches that are asked for at once."""
MOST_STEPS = 16
"""Slots taken in one call, where that is copying; about as many bytes as a round of direct reads has."""
MOST_LOOKS = 60
"""Looks without news in one call, some tenths of a millisecond together. Then others have a turn, which takes
milliseconds where they compute."""
PATIENCE_SECONDS = 0.5
AVOID_SECONDS = 5.0

Lost = Callable[[str, TransportError], None]


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


class StagedSource(ABC):
    """One source's ring, as its reader sees it. ``lost`` is told when the source is."""

    def __init__(self, peer: str, place: RingPlace, agent: Agent, lost: Lost) -> None:
        self.place = place
        self.slot_bytes = min(place.slot_bytes, SLOT_BYTES)
        self._window = max(1, min(WINDOW, place.num_slots // 2))
        self._peer = peer
        self._agent = agent
        self._lost = lost
        self._reads: deque[StagedRead] = deque()
        self._asked: list[Asked] = []
        self._open: dict[int, Chunk] = {}
        self._given_back: deque[int] = deque()
        self._leaving = False
        self._heard_at = 0.0
        self._avoid_until = 0.0

    @property
    @abstractmethod
    def mapped(self) -> bool:
        """Whether slots are there without being read."""

    @property
    def busy(self) -> bool:
        """Whether it has anything to do."""
        return bool(self._reads or self._open or self._given_back)

    def leave(self) -> None:
        """The peer is being forgotten: nothing is posted any more."""
        self._leaving = True

    def settled(self) -> bool:
        """Whether nothing of a peer that is being forgotten is still being read."""
        return True

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
            if not steps and not self._lives():
                raise TransportError(
                    TransportErrorKind.PEER_LOST,
                    f"peer {self._peer}: its process has ended, or has closed its transport",
                )
        except TransportError as error:
            self._fail(error, now)

    def end(self) -> None:
        """Gives up what it holds, once nothing of it is under way."""
        self._open.clear()
        self._asked.clear()
        self._reads.clear()

    @abstractmethod
    def _step(self, now: float) -> bool:
        """Looks, asks, and takes what is there; whether the next step may do more at once."""

    def _lives(self) -> bool:
        """Whether the source is there; True where reading its slots would fail if it were not."""
        return True

    def _may_close(self, chunk: Chunk) -> bool:
        """Whether nothing of the chunk is under way."""
        return not chunk.under_way

    def _waits(self) -> bool:
        """Whether nothing but the source's turn is waited for."""
        return bool(self._open)

    def _mind_patience(self, now: float) -> None:
        """Reads directly what the source lets its reader wait for too long."""
        if self._waits() and now - self._heard_at > PATIENCE_SECONDS:
            self._lose_patience(now)

    def _ask(self, now: float) -> bool:
        """Asks for what is wanted, opens what may come, and gives tickets back; whether a message was sent."""
        if not self._open:
            self._heard_at = now
        sent = self._ask_for_batches()
        for asked in self._asked:
            self._open_chunks(asked)
        while self._given_back and (not self._open or len(self._given_back) >= max(1, self._window // 2)):
            self._send(GatherRequest.for_nothing(self._some_given_back()))
            sent = True
        return sent

    def _ask_for_batches(self) -> bool:
        """Asks for one batch of each read after the other, the next one when chunks of all its parts are open."""
        coming = {asked.read for asked in self._asked if asked.unopened}
        sent = False
        for read in self._reads:
            if read.unasked and read not in coming and len(self._asked) < MOST_BATCHES:
                batch = read.next_batch()
                asked = Asked(read, batch, secrets.randbits(63) + 1)
                self._asked.append(asked)
                read.open += batch.slots.count
                self._send(batch.request(asked.ticket, self._some_given_back()))
                sent = True
        self._reads.rotate(-1)
        return sent

    def _open_chunks(self, asked: Asked) -> None:
        while asked.unopened and asked.open < self._window:
            number = asked.opened
            chunk = Chunk(asked, number, asked.batch.part(number), shown(asked.ticket + number))
            self._open[chunk.ticket] = chunk
            asked.opened += 1
            asked.open += 1

    def _some_given_back(self) -> tuple[int, ...]:
        return tuple(islice(self._given_back, MOST_GIVEN_BACK))

    def _send(self, request: GatherRequest) -> None:
        """Sends it; only then its tickets are given back."""
        self._agent.notify(self._peer, request.encode())
        for _ in request.given_back:
            self._given_back.popleft()

    def _forget_unwanted(self) -> None:
        """Drops what belongs to doomed reads, once nothing of it is under way, and reads that ask for no more."""
        asked_are_wanted = all(asked.read.wanted and asked.left for asked in self._asked)
        if asked_are_wanted and all(read.asking for read in self._reads):
            return
        for chunk in tuple(self._open.values()):
            if not chunk.read.wanted and self._may_close(chunk):
                self._close(chunk)
        for asked in self._asked:
            if not asked.read.wanted:
                self._withdraw(asked)
        self._asked = [asked for asked in self._asked if asked.left]
        self._reads = deque(read for read in self._reads if read.asking)

    def _withdraw(self, asked: Asked) -> None:
        """Expects no more of a batch than what is open: one ticket given back unserved takes back those behind it."""
        if asked.unopened:
            self._given_back.append(asked.ticket + asked.opened)
            asked.read.open -= asked.unopened if asked.read.wanted else 0
            asked.opened = asked.batch.slots.count

    def _read_unopened(self, asked: Asked) -> None:
        """Reads directly what of a batch was not to be expected yet."""
        if asked.unopened:
            start, _ = asked.batch.slots.bounds(asked.opened)
            asked.read.read_directly(asked.batch.start + start, asked.batch.stop)
            self._withdraw(asked)

    def _read_refused(self, chunk: Chunk) -> None:
        """What the source refuses is read directly, and so is the rest of its batch."""
        self._read_unopened(chunk.asked)
        for other in tuple(self._open.values()):
            if other.asked is chunk.asked and other.number >= chunk.number and self._may_close(other):
                self._read_chunk(other)

    def _read_chunk(self, chunk: Chunk) -> None:
        chunk.read.read_directly(chunk.part.start, chunk.part.stop)
        self._close(chunk)

    def _overtaken(self, chunk: Chunk) -> None:
        """The slot was another's before all of it was here: it is gathered once more, or read directly."""
        again = chunk.asked.batch.alone(chunk.number)
        if again.times_asked < MOST_ASKED:
            chunk.read.ask_again(again)
        else:
            chunk.read.read_directly(chunk.part.start, chunk.part.stop)

    def _close(self, chunk: Chunk) -> None:
        """The chunk needs its ticket and its place here no more. What else is to become of its rows is said before:
        this may end the read.
        """
        self._give_back(chunk)
        self._settle(chunk)

    def _give_back(self, chunk: Chunk) -> None:
        """The source may use the chunk's slot again."""
        del self._open[chunk.ticket]
        chunk.asked.open -= 1
        self._given_back.append(chunk.ticket)

    def _settle(self, chunk: Chunk) -> None:
        """Nothing of the chunk is left here."""
        if chunk.read.wanted:
            chunk.read.open -= 1
        chunk.read.end_if_over()

    def _lose_patience(self, now: float) -> None:
        """Reads directly whatever was not gathered, or cannot be confirmed."""
        self._avoid_until = now + AVOID_SECONDS
        for asked in self._asked:
            self._read_unopened(asked)
        for chunk in tuple(self._open.values()):
            if not chunk.under_way:
                self._read_chunk(chunk)
        for read in self._reads:
            read.read_rest_directly()

    def _fail(self, error: TransportError, now: float) -> None:
        """The source is gone, or its ring cannot be used."""
        if error.kind is TransportErrorKind.PEER_LOST:
            self._lost(self._peer, error)
        else:
            self._lose_patience(now)
