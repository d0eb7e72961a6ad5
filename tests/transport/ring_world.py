"""A ring and its reader in one process, for both kinds of sources: slots that are read, and slots that are mapped."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
from tests.transport.memory_agent import MemoryAgent

from kvweave.core.layout import Region
from kvweave.errors import TransportError
from kvweave.transport.agent_data import PROBE_BYTES
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import MOST_PIECES, GatherRequest
from kvweave.transport.landing import NUM_LANDINGS, Landing
from kvweave.transport.mapped_source import MappedSource, map_ring
from kvweave.transport.piecewise import PiecewiseRead
from kvweave.transport.read_source import ReadSource
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows
from kvweave.transport.runs import runs_of
from kvweave.transport.slots import Slots
from kvweave.transport.staged_read import StagedRead
from kvweave.transport.staged_source import StagedSource
from kvweave.transport.staging_ring import StagingRing

MEMORY_BYTES = 1 << 18
GUARD = 0xA5
PROBE = os.urandom(PROBE_BYTES)


def gather_message(
    ticket: int, nbytes: int, address: np.ndarray, slot_pieces: int = MOST_PIECES, given_back: tuple[int, ...] = ()
) -> bytes:
    """Asks for pieces at these addresses, so many in each slot."""
    slots = Slots(len(address), slot_pieces, slot_pieces)
    return GatherRequest(ticket, nbytes, np.zeros(1, np.uint64), runs_of(address), 0, slots, given_back).encode()


@dataclass
class World:
    """A reader and a ring, of 4 slots of 4 KB unless said otherwise, in one process."""

    agent: MemoryAgent = field(default_factory=MemoryAgent)
    serving: bool = True
    now: float = 0.0
    fragile: int = 0
    slots: int = 4
    slot_bytes: int = 4096
    mapped: bool = False

    def __post_init__(self) -> None:
        self.memory = np.random.default_rng(0).integers(0, 256, MEMORY_BYTES, np.uint8)
        self.target = np.full(MEMORY_BYTES, GUARD, np.uint8)
        self.regions = RegionTable().with_regions([Region(self.memory.ctypes.data, MEMORY_BYTES)])
        self.ring = StagingRing(PROBE, self.slots, self.slot_bytes)
        self.landing = Landing()
        self.lost: list[str] = []
        self.source = self._source()
        self.reads: list[StagedRead] = []
        self.sent: list[list[bytes]] = []

    def _source(self) -> StagedSource:
        if not self.mapped:
            return ReadSource("peer", self.ring.place, self.landing, self.agent, self.lose)
        ring = map_ring(self.ring.place, os.getpid(), PROBE)
        assert ring is not None
        return MappedSource("peer", self.ring.place, ring, self.agent, self.lose)

    def post(self, read: PiecewiseRead, rows: ReadRows) -> object:
        piece = self.agent.prepare("peer", rows)
        read.posted.append(piece)
        self.agent.start(piece)
        self.collect(read)
        return piece

    def collect(self, read: PiecewiseRead) -> None:
        for piece in [piece for piece in read.posted if self.agent.is_over(piece)]:
            read.posted.remove(piece)
            self.agent.release(piece)
        read.end_if_over()

    def lose(self, peer: str, error: TransportError) -> None:
        self.lost.append(peer)
        self.source.leave()
        for read in self.reads:
            read.cancel(error)

    def rows(self, count: int, seed: int = 0) -> ReadRows:
        """So many pieces of 256 bytes."""
        dice = np.random.default_rng(seed)
        source, target = (dice.permutation(MEMORY_BYTES // 256)[:count] * 256 for _ in range(2))
        return ReadRows(
            source.astype(np.uint64) + np.uint64(self.memory.ctypes.data),
            target.astype(np.uint64) + np.uint64(self.target.ctypes.data),
            np.full(count, 256, np.uint64),
        )

    def begin(self, rows: ReadRows) -> StagedRead:
        self.reads.append(self.source.begin(rows))
        return self.reads[-1]

    def round(self) -> None:
        if self.serving:
            messages = list(self.agent.messages)
            self.agent.messages.clear()
            self.sent.append(messages)
            served = {"reader": messages}
            while self.ring.serve(served, self.regions, self.now):
                served = {}
        for read in self.reads:
            self.collect(read)
        self.agent.fragile = self.fragile
        self.source.advance(self.now)
        self.agent.fragile = 0

    def finish(self, *reads: StagedRead) -> None:
        for _ in range(2_000):
            if all(read.state.terminal for read in reads):
                return
            self.round()
        raise AssertionError(f"not terminal: {reads}")

    def finish_reclaiming(self, read: StagedRead) -> None:
        """Time passes meanwhile, so that slots that were stolen are reclaimed."""
        for _ in range(400):
            self.round()
            self.now += 0.3
        self.finish_directly(read)

    def finish_directly(self, read: StagedRead) -> None:
        """Reads what waits to be read directly."""
        while read.waiting:
            self.post(read, read.waiting.popleft())
        self.finish(read)
        assert read.state is ReadState.DONE

    def expected(self, *parts: ReadRows) -> np.ndarray:
        memory = np.full(MEMORY_BYTES, GUARD, np.uint8)
        for rows in parts:
            columns = rows.source_address.tolist(), rows.target_address.tolist(), rows.nbytes.tolist()
            for source, target, size in zip(*columns, strict=True):
                start, into = source - self.memory.ctypes.data, target - self.target.ctypes.data
                memory[into : into + size] = self.memory[start : start + size]
        return memory

    def require_clean(self) -> None:
        """Nothing is held on either side."""
        for _ in range(5):
            self.round()
        assert not self.source.busy
        assert len(self.landing.free_slots) == NUM_LANDINGS
        assert not self.ring.memory[: 8 * self.slots].any()
