"""Slots that lie in memory of both: what changes while it is scattered is gathered anew, and an end is seen at once."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.transport.ring_world import GUARD, PROBE, World, gather_message

from kvweave.transport.agent_data import PROBE_BYTES, RingPlace
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import GatherRequest
from kvweave.transport.mapped_source import MappedSource, map_ring
from kvweave.transport.shared_memory import MappedMemory
from kvweave.transport.staged_read import MOST_ASKED
from kvweave.transport.staged_source import PATIENCE_SECONDS
from kvweave.transport.staging_ring import PROBE_AT, STATUS_BYTES


class Watched(np.ndarray[Any, Any]):
    """Memory that tells when a slot of it is about to be looked at."""

    taken: Callable[[], None] = staticmethod(lambda: None)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and (place.start or 0) >= STATUS_BYTES:
            self.taken()
        return super().__getitem__(place).view(np.ndarray)


def watched(world: World, taken: Callable[[], None]) -> None:
    """From now on its source tells of every slot that it takes."""
    memory = world.ring.memory.view(Watched)
    memory.taken = taken
    ring = MappedMemory(memory, os.pidfd_open(os.getpid()), PROBE, PROBE_AT)
    world.source.end()
    world.source = MappedSource("peer", world.ring.place, ring, world.agent, world.lose)


@pytest.fixture
def world() -> World:
    return World(mapped=True)


def test_a_slot_that_changed_while_it_was_scattered_is_gathered_anew(world: World) -> None:
    """Its ticket is taken away and its bytes are another's, at every third slot."""
    numbers = iter(range(10**6))

    def steal() -> None:
        if next(numbers) % 3 == 0:
            world.ring.memory[:32] = 0
            world.ring.memory[STATUS_BYTES:] = GUARD + 1

    watched(world, steal)
    rows = world.rows(500)
    read = world.begin(rows)
    world.finish_reclaiming(read)
    np.testing.assert_array_equal(world.target, world.expected(rows))


def test_a_chunk_that_is_always_overtaken_is_read_directly_in_the_end(world: World) -> None:
    asked = 0

    def steal() -> None:
        nonlocal asked
        asked += 1
        world.ring.memory[:32] = 0

    watched(world, steal)
    read = world.begin(world.rows(16))
    while not read.waiting:
        world.round()
    assert asked == MOST_ASKED


def forged(world: World, ticket: int) -> bytes:
    """A request for pieces that the reader does not want."""
    address = np.full(16, world.memory.ctypes.data, np.uint64)
    return gather_message(ticket, 256, address)


def visible(world: World) -> list[int]:
    return world.ring.memory[: 8 * world.slots].view(np.uint64).tolist()


def test_nobody_else_can_have_his_pieces_scattered_under_tickets_that_are_seen() -> None:
    world = World(mapped=True, slots=16)
    rows = world.rows(200)
    read = world.begin(rows)
    world.source.advance(0.0)
    world.ring.serve({"reader": list(world.agent.messages)}, world.regions, 0.0)
    world.agent.messages.clear()
    seen = max(visible(world))
    world.ring.serve({"other": [forged(world, seen + number) for number in range(4)]}, world.regions, 0.0)
    world.finish(read)
    assert read.state is ReadState.DONE
    np.testing.assert_array_equal(world.target, world.expected(rows))


def test_a_slot_that_was_another_ones_meanwhile_is_not_believed_again(world: World) -> None:
    """Others take the slot back while it is scattered, and ask for theirs under what was seen in it."""
    serves = iter([True])

    def others() -> None:
        if not next(serves, False):
            return
        [seen], later = [number for number in visible(world) if number], world.now + 1.1
        asked = [("B", 1), ("B", 2), ("C", 3), ("C", 4)]
        for name, ticket in asked:
            world.ring.serve({name: [forged(world, ticket)]}, world.regions, later)
        given_back = GatherRequest.for_nothing((3, 4)).encode()
        world.ring.serve({"C": [given_back, forged(world, seen)]}, world.regions, later)

    watched(world, others)
    rows = world.rows(16)
    read = world.begin(rows)
    for _ in range(50):
        world.round()
        world.now += 0.05
        world.finish_directly(read) if read.waiting else None
    assert read.state is ReadState.DONE
    np.testing.assert_array_equal(world.target, world.expected(rows))


def test_slots_that_are_ready_are_taken_however_late_their_reader_looks() -> None:
    world = World(mapped=True, slots=16)
    read = world.begin(world.rows(100))
    world.source.advance(0.0)
    served = {"reader": list(world.agent.messages)}
    while world.ring.serve(served, world.regions, 0.0):
        served = {}
    world.source.advance(1.2 * PATIENCE_SECONDS)
    assert not read.waiting and world.source.usable(1.2 * PATIENCE_SECONDS)


def mappings(world: World) -> int:
    """How often this process has rings mapped."""
    gc.collect()  # worlds of earlier tests
    return Path("/proc/self/maps").read_text().count("memfd:kvweave")


def test_a_ring_is_mapped_no_longer_than_its_source_is_known(world: World) -> None:
    """Whoever keeps a handle of a read that failed keeps no memory."""
    before = mappings(world)
    ring = map_ring(world.ring.place, os.getpid(), PROBE)
    assert ring is not None and mappings(world) == before + 1
    source = MappedSource("peer", world.ring.place, ring, world.agent, lambda peer, error: source.leave())
    read = source.begin(world.rows(100))
    del ring
    world.agent.lost = True
    source.advance(0.0)
    source.end()
    assert mappings(world) == before
    assert not read.waiting


def test_the_end_of_its_transport_is_seen_at_once(world: World) -> None:
    read = world.begin(world.rows(500))
    world.round()
    world.ring.close()
    world.serving = False
    while not world.lost:
        world.round()
    assert world.lost == ["peer"]
    assert read.state is ReadState.FAILED and world.source.settled()


def test_a_source_that_says_nothing_lives(world: World) -> None:
    world.serving = False
    world.begin(world.rows(500))
    world.round()
    assert not world.lost


def test_no_ring_is_mapped_where_writes_may_be_seen_in_another_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert map_ring(world.ring.place, os.getpid(), PROBE) is None


def test_only_the_ring_of_that_probe_is_mapped(world: World) -> None:
    place = world.ring.place
    assert map_ring(place, os.getpid(), PROBE) is not None
    assert map_ring(place, os.getpid(), bytes(PROBE_BYTES)) is None
    assert map_ring(RingPlace(place.address, place.num_slots, place.slot_bytes), os.getpid(), PROBE) is None
    assert map_ring(RingPlace(place.address, 256, 64 << 20, place.file), os.getpid(), PROBE) is None
    assert map_ring(RingPlace(place.address, place.num_slots, place.slot_bytes, 0), os.getpid(), PROBE) is None
