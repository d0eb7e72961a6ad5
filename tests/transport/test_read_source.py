"""Slots that are read: what changes meanwhile is not believed, and what is under way ends before all else."""

from __future__ import annotations

import numpy as np
import pytest
from tests.transport.memory_agent import MemoryAgent
from tests.transport.ring_world import GUARD, World

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.base import ReadState
from kvweave.transport.landing import MOST_STATUS_ROWS, NUM_LANDINGS
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_read import MOST_ASKED
from kvweave.transport.staged_source import PATIENCE_SECONDS

CANCELLED = TransportError(TransportErrorKind.CANCELLED, "given up")


@pytest.fixture(params=[0, 3], ids=["copying while posting", "pieces under way for a while"])
def world(request: pytest.FixtureRequest) -> World:
    return World(MemoryAgent(delay=request.param))


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
    world.finish_reclaiming(read)
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


def test_a_source_whose_status_cannot_be_seen_is_read_directly_too() -> None:
    world = World(MemoryAgent(delay=10**6))
    read = world.begin(world.rows(500))
    world.round()
    world.now = PATIENCE_SECONDS * 1.1
    world.round()
    assert sum(rows.total_bytes for rows in read.waiting) == 500 * 256


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
