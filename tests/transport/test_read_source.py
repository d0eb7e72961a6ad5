"""Staged reads bring the right bytes or are read directly, whatever the source does; and nothing is left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.memory_agent import MemoryAgent

from kvweave.core.layout import Region
from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import GatherRequest
from kvweave.transport.landing import MOST_STATUS_ROWS, NUM_LANDINGS, Landing
from kvweave.transport.piecewise import PiecewiseRead
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_read import MOST_ASKED, StagedRead
from kvweave.transport.staged_source import AVOID_SECONDS, PATIENCE_SECONDS, WINDOW, StagedSource
from kvweave.transport.staging_ring import STATUS_BYTES, StagingRing

MEMORY_BYTES = 1 << 18
GUARD = 0xA5
CANCELLED = TransportError(TransportErrorKind.CANCELLED, "given up")


@dataclass
class World:
    """A reader and a ring, of 4 slots of 4 KB unless said otherwise, in one process."""

    agent: MemoryAgent = field(default_factory=MemoryAgent)
    serving: bool = True
    now: float = 0.0
    fragile: int = 0
    slots: int = 4
    slot_bytes: int = 4096

    def __post_init__(self) -> None:
        self.memory = np.random.default_rng(0).integers(0, 256, MEMORY_BYTES, np.uint8)
        self.target = np.full(MEMORY_BYTES, GUARD, np.uint8)
        self.regions = RegionTable().with_regions([Region(self.memory.ctypes.data, MEMORY_BYTES)])
        self.ring = StagingRing(self.slots, self.slot_bytes)
        self.landing = Landing()
        self.lost: list[str] = []
        self.source = StagedSource("peer", self.ring.place, self.landing, self.agent, self.lose)
        self.reads: list[StagedRead] = []
        self.sent: list[list[bytes]] = []

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


@pytest.fixture(params=[0, 3], ids=["copying while posting", "pieces under way for a while"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryAgent(delay=request.param))


@pytest.mark.parametrize("count", [1, 16, 500], ids=["a piece", "a chunk", "many chunks"])
def test_the_bytes_arrive_and_nothing_is_held_afterwards(world: World, count: int) -> None:
    rows = world.rows(count)
    read = world.begin(rows)
    world.finish(read)
    assert read.state is ReadState.DONE and not read.waiting
    np.testing.assert_array_equal(world.target, world.expected(rows))
    world.require_clean()


def test_several_reads_share_the_ring(world: World) -> None:
    rows = world.rows(900)
    parts = [rows.take(start, start + 90) for start in range(0, 900, 90)]
    reads = [world.begin(part) for part in parts]
    world.finish(*reads)
    np.testing.assert_array_equal(world.target, world.expected(rows))
    world.require_clean()


def test_a_slot_that_changed_while_it_was_read_is_not_believed(world: World) -> None:
    """Its ticket is taken away and its bytes are another's, before every third slot is read."""
    rows = world.rows(500)
    stolen = iter(range(10**6))

    def steal(piece: ReadRows) -> None:
        if piece.total_bytes != 8 * (4 + 16) and next(stolen) % 3 == 0:
            place = int(piece.source_address[0]) - world.ring.memory.ctypes.data
            world.ring.memory[place : place + piece.total_bytes] = GUARD + 1
            world.ring.memory[:32] = 0

    world.agent.before_copy = steal
    read = world.begin(rows)
    for _ in range(400):
        world.round()
        world.now += 0.3  # what was stolen is reclaimed
    world.finish_directly(read)
    np.testing.assert_array_equal(world.target, world.expected(rows))


def test_a_chunk_that_is_always_overtaken_is_read_directly_in_the_end() -> None:
    world = World()
    rows = world.rows(16)
    asked = 0

    def steal(piece: ReadRows) -> None:
        nonlocal asked
        if piece.total_bytes == rows.total_bytes:
            asked += 1
            world.ring.memory[:32] = 0

    world.agent.before_copy = steal
    read = world.begin(rows)
    while not read.waiting:
        world.round()
    assert asked == MOST_ASKED
    assert (world.target == GUARD).all()


@pytest.mark.parametrize("count", [1, 16, 40])
def test_what_is_refused_is_read_directly(world: World, count: int) -> None:
    world.regions = RegionTable()
    rows = world.rows(count)
    read = world.begin(rows)
    for _ in range(20):
        world.round()
    assert sum(rows.total_bytes for rows in read.waiting) == count * 256
    assert (world.target == GUARD).all()
    world.require_clean()
    world.finish_directly(read)
    np.testing.assert_array_equal(world.target, world.expected(rows))


@pytest.mark.parametrize("count", [1, 16, 500])
def test_a_source_that_gathers_nothing_is_read_directly_and_avoided_for_a_while(world: World, count: int) -> None:
    world.serving = False
    rows = world.rows(count)
    read = world.begin(rows)
    world.round()
    world.now = PATIENCE_SECONDS * 0.9
    for _ in range(10):
        world.round()
    assert not read.waiting
    world.now = PATIENCE_SECONDS * 1.1
    for _ in range(10):
        world.round()
    assert sum(rows.total_bytes for rows in read.waiting) == count * 256
    assert not world.source.usable(world.now)
    assert world.source.usable(world.now + AVOID_SECONDS)
    world.finish_directly(read)
    np.testing.assert_array_equal(world.target, world.expected(rows))


def test_a_source_whose_status_cannot_be_seen_is_read_directly_too() -> None:
    world = World(MemoryAgent(delay=10**6))
    read = world.begin(world.rows(500))
    world.round()
    world.now = PATIENCE_SECONDS * 1.1
    world.round()
    assert sum(rows.total_bytes for rows in read.waiting) == 500 * 256


def test_patience_begins_anew_with_every_read(world: World) -> None:
    for now in (0.0, 100.0):
        world.now = now
        read = world.begin(world.rows(500))
        world.finish(read)
        assert world.source.usable(now)


def test_a_source_that_comes_back_late_disturbs_nothing(world: World) -> None:
    """What it gathers then was given back already."""
    world.serving = False
    read = world.begin(world.rows(500))
    world.round()
    world.now = 2 * PATIENCE_SECONDS
    for _ in range(10):
        world.round()
    world.serving = True
    world.require_clean()
    assert (world.target == GUARD).all()
    assert not read.state.terminal


def test_a_cancelled_read_scatters_no_more_and_others_go_on(world: World) -> None:
    rows = world.rows(900)
    cancelled, other = world.begin(rows.take(0, 700)), world.begin(rows.take(700, 900))
    for _ in range(3):
        world.round()
    cancelled.cancel(CANCELLED)
    world.finish(cancelled)
    assert (cancelled.state, cancelled.error) == (ReadState.FAILED, CANCELLED)
    before = world.target.copy()
    world.finish(other)
    changed = world.target != before
    np.testing.assert_array_equal(world.target[changed], world.expected(rows.take(700, 900))[changed])
    world.require_clean()


def test_a_lost_source_is_told_once_and_its_reads_end(world: World) -> None:
    read = world.begin(world.rows(500))
    world.round()
    world.agent.lost = True
    world.source.advance(0.0)
    assert world.lost == ["peer"]
    assert read.state is ReadState.FAILED and world.source.settled()
    world.source.end()
    assert (len(world.landing.free_slots), len(world.landing.free_status)) == (NUM_LANDINGS, MOST_STATUS_ROWS)
    assert not world.agent.pieces


def test_a_ring_that_cannot_be_read_leaves_everything_to_direct_reading(world: World) -> None:
    read = world.begin(world.rows(500))
    world.agent.broken = True
    world.source.advance(0.0)
    world.agent.broken = False
    assert sum(rows.total_bytes for rows in read.waiting) == 500 * 256
    assert not world.source.usable(0.0)


@pytest.mark.parametrize(
    ("slots", "window"), [(1, 1), (4, 2), (2 * WINDOW, WINDOW), (8 * WINDOW, WINDOW)], ids="ring of {}".format
)
def test_no_more_chunks_are_open_than_slots_may_be_held(slots: int, window: int) -> None:
    world = World(serving=False, slots=slots)
    world.begin(world.rows(900))
    world.round()
    tickets = [GatherRequest.decode(message).ticket for message in world.agent.messages]
    assert len(set(tickets)) == len(tickets) == window and all(tickets)


def test_chunks_are_asked_for_several_together() -> None:
    world = World(slots=2 * WINDOW)
    world.finish(world.begin(world.rows(1000)))
    sent = [len(messages) for messages in world.sent if messages]
    assert sent[0] == WINDOW and all(count % (WINDOW // 2) == 0 for count in sent[:-1])


@st.composite
def any_rows(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Rows (source, target, bytes) of any sizes, in any order; targets do not overlap."""
    sizes = draw(st.lists(st.one_of(st.integers(1, 300), st.integers(3000, 9000)), min_size=1, max_size=8))
    gaps = draw(st.lists(st.integers(0, 40), min_size=len(sizes), max_size=len(sizes)))
    targets = np.cumsum([0, *sizes[:-1]]) + np.cumsum(gaps)
    sources = [draw(st.integers(0, MEMORY_BYTES - size)) for size in sizes]
    return draw(st.permutations(list(zip(sources, targets.tolist(), sizes, strict=True))))


class Fault(Enum):
    """What a source may do while it is read."""

    NONE = "nothing"
    REFUSES = "it refuses everything from some time on"
    STALLS = "it gathers nothing for a while"
    BREAKS = "it cannot be reached now and then"
    OVERTAKES = "slots are used again while they are read"

    def happen(self, world: World, number: int) -> None:
        """Before round ``number``."""
        if self is Fault.REFUSES and number == 3:
            world.regions = RegionTable()
        if self is Fault.STALLS:
            world.serving = not 3 <= number < 12
            world.now += 0.1
        if self is Fault.BREAKS:
            world.fragile = 3 + number % 5
        if self is Fault.OVERTAKES and number % 3 == 0:
            world.ring.memory[: 8 * world.slots] = 0
            world.ring.memory[STATUS_BYTES:] = GUARD + 1
            world.now += 0.6


@settings(deadline=None, max_examples=150)
@given(any_rows(), st.sampled_from([300, 1000, 4096]), st.sampled_from([0, 2]), st.sampled_from(Fault))
def test_staged_bytes_are_those_of_a_direct_read(
    places: list[tuple[int, int, int]], slot_bytes: int, delay: int, fault: Fault
) -> None:
    world = World(MemoryAgent(delay=delay), slot_bytes=slot_bytes)
    sources, targets, sizes = (np.array(column, np.uint64) for column in zip(*places, strict=True))
    rows = ReadRows(sources + np.uint64(world.memory.ctypes.data), targets + np.uint64(world.target.ctypes.data), sizes)
    read = world.begin(rows)
    for number in range(2_000):
        fault.happen(world, number)
        world.round()
        while read.waiting:
            world.post(read, read.waiting.popleft())
        if read.state.terminal:
            break
    assert read.state is ReadState.DONE
    np.testing.assert_array_equal(world.target, world.expected(rows))
    assert fault is not Fault.NONE or not world.ring.counts["refused"]
    world.fragile = 0
    for _ in range(300):
        world.round()
    assert not world.source.busy and len(world.landing.free_slots) == NUM_LANDINGS


def test_a_source_that_is_left_settles_when_its_status_was_read() -> None:
    world = World(MemoryAgent(delay=200))
    read = world.begin(world.rows(16))
    world.source.advance(0.0)
    world.source.leave()
    read.cancel(CANCELLED)
    assert not read.state.terminal
    for _ in range(250):
        world.collect(read)
    assert read.state is ReadState.FAILED
