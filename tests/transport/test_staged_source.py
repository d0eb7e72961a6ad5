"""Staged reads bring the right bytes or are read directly, whatever the source does; and nothing is left behind."""

from __future__ import annotations

from enum import Enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transport.memory_agent import MemoryAgent
from tests.transport.ring_world import GUARD, MEMORY_BYTES, World, gather_message

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import GatherRequest
from kvweave.transport.landing import NUM_LANDINGS
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_source import AVOID_SECONDS, MOST_BATCHES, PATIENCE_SECONDS, WINDOW
from kvweave.transport.staging_ring import RECLAIM_SECONDS, SILENT_SECONDS, STATUS_BYTES

CANCELLED = TransportError(TransportErrorKind.CANCELLED, "given up")
KINDS = {"read at once": (0, False), "under way for a while": (3, False), "mapped": (0, True)}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def world(request: pytest.FixtureRequest) -> World:
    delay, mapped = request.param
    return World(MemoryAgent(delay=delay), mapped=mapped)


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


def test_a_ring_that_cannot_be_read_leaves_everything_to_direct_reading(world: World) -> None:
    read = world.begin(world.rows(500))
    world.agent.broken = True
    world.source.advance(0.0)
    world.agent.broken = False
    assert sum(rows.total_bytes for rows in read.waiting) == 500 * 256
    assert not world.source.usable(0.0)


@pytest.mark.parametrize("slots", [1, 4, 2 * WINDOW, 8 * WINDOW], ids="ring of {}".format)
def test_a_read_of_one_size_is_asked_for_at_once(slots: int) -> None:
    """After that nothing but tickets is sent, of half of what may be held together."""
    world = World(slots=slots)
    world.finish(world.begin(world.rows(900)))
    sent = [GatherRequest.decode(message) for messages in world.sent for message in messages]
    assert [len(request.tickets) for request in sent if request.ticket] == [sum(len(one.tickets) for one in sent)]
    given_back = [len(request.given_back) for request in sent[1:]]
    assert all(count == max(1, min(WINDOW, slots // 2) // 2) for count in given_back[:-1])


def test_only_so_many_batches_are_asked_for_at_once() -> None:
    world = World(serving=False)
    for _ in range(MOST_BATCHES + 3):
        world.begin(world.rows(900))
    for _ in range(5):
        world.round()
    assert len(world.agent.messages) == MOST_BATCHES


def test_a_small_read_does_not_wait_for_a_large_one(world: World) -> None:
    rows = world.rows(950)
    large, small = world.begin(rows.take(0, 900)), world.begin(rows.take(900, 916))
    world.finish(small)
    assert not large.state.terminal
    world.finish(large)
    np.testing.assert_array_equal(world.target, world.expected(rows.take(0, 916)))


def test_what_is_refused_half_way_is_read_directly_from_there_on(world: World) -> None:
    """One piece lies nowhere; all of its slot and behind it is read directly, where that piece fails the read."""
    rows = world.rows(500)
    address = rows.source_address.copy()
    address[250] = 4096
    read = world.begin(ReadRows(address, rows.target_address, rows.nbytes))
    for _ in range(60):
        world.round()
    left = sum(rows.total_bytes for rows in read.waiting)
    assert 250 * 256 <= left <= 270 * 256
    before = 500 - left // 256
    np.testing.assert_array_equal(world.target, world.expected(rows.take(0, before)))
    world.require_clean()


def test_a_reader_that_was_stopped_for_long_goes_on_directly(world: World) -> None:
    rows = world.rows(900)
    read = world.begin(rows)
    world.source.advance(0.0)
    served = {"reader": list(world.agent.messages)}
    world.agent.messages.clear()
    while world.ring.serve(served, world.regions, 0.0):
        served = {}
    world.now = 3 * SILENT_SECONDS
    world.ring.serve({}, world.regions, world.now)
    for _ in range(40):
        world.round()
    assert read.waiting
    world.finish_directly(read)
    np.testing.assert_array_equal(world.target, world.expected(rows))
    world.require_clean()


def test_a_message_that_cannot_be_sent_leaves_its_rows_to_direct_reading(world: World) -> None:
    read = world.begin(world.rows(500))
    world.agent.fragile = 1
    world.source.advance(0.0)
    world.agent.fragile = 0
    assert sum(rows.total_bytes for rows in read.waiting) == 500 * 256


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_after_a_message_that_was_lost_reads_are_gathered_again(world: World, failing: int) -> None:
    """Whatever it should have given back is given back with the next one."""
    notify, numbers = world.agent.notify, iter(range(1, 1000))

    def fragile(peer: str, message: bytes) -> None:
        if next(numbers) == failing:
            raise TransportError(TransportErrorKind.UNAVAILABLE, "once")
        notify(peer, message)

    world.agent.notify = fragile  # type: ignore[method-assign]
    for seed in range(3):
        world.now += AVOID_SECONDS
        read = world.begin(rows := world.rows(800, seed))
        for _ in range(300):
            world.round()
        assert seed == 0 or not read.waiting
        world.finish_directly(read)
        np.testing.assert_array_equal(world.target, world.expected(rows))
        world.target[:] = GUARD
    world.require_clean()


def test_a_reader_that_was_away_while_others_needed_slots_is_served_again(world: World) -> None:
    away = world.begin(world.rows(800))
    world.round()
    world.round()
    for number in range(1, 4):
        world.now += 2 * RECLAIM_SECONDS
        asked = np.full(2, world.memory.ctypes.data, np.uint64)
        for name in ("second", "third"):
            ticket = (number << 40) + len(name)
            world.ring.serve({name: [gather_message(ticket, 256, asked, 1)]}, world.regions, world.now)
            world.ring.serve({}, world.regions, world.now)
    for _ in range(100):
        world.round()
        world.now += 0.1
    world.finish_directly(away)
    world.now += AVOID_SECONDS
    read = world.begin(world.rows(800, 1))
    world.finish(read)
    assert not read.waiting


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
@given(any_rows(), st.sampled_from([300, 1000, 4096]), st.sampled_from([*KINDS.values()]), st.sampled_from(Fault))
def test_staged_bytes_are_those_of_a_direct_read(
    places: list[tuple[int, int, int]], slot_bytes: int, kind: tuple[int, bool], fault: Fault
) -> None:
    delay, mapped = kind
    world = World(MemoryAgent(delay=delay), slot_bytes=slot_bytes, mapped=mapped)
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
