"""Simulated reads copy what the source holds in that moment, and never write after they are terminal."""

from __future__ import annotations

import random

import pytest

from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.memory import content
from kvweave.testing.simulation.reads import Copy, Read, ReadFaults
from kvweave.testing.simulation.scenario import CALM, FailingReads, Scenario, Shape, SlowReads
from kvweave.testing.simulation.world import World

SLOTS = (28, 24)
"""The first ones of blocks 7 and 6."""


@pytest.fixture
def world() -> World:
    """Idle engines, reads of a second. Blocks 7 and 6 hold run 0 at the source, and are request 1's at the target."""
    made = World(Scenario(0, (Shape(1, 8),), (Shape(1, 8),), ()))
    made.read_faults.fixed_seconds = 1.0
    source, target = made.prefill(0), made.decode(0)
    source.pool.write(source.pool.take(2, owner=0), 0, range(8))
    target.pool.take(2, owner=1)
    return made


def read_of(world: World, source_rank: int = 0, copies: tuple[Copy, ...] = ()) -> Read:
    return Read(5, 1, 0, world.prefill(0), source_rank, copies)


def post(world: World, ended: list[Read]) -> Read:
    read = read_of(world, copies=tuple((0, slot, slot) for slot in SLOTS))
    world.decode(0).reads.post(read, ended.append)
    return read


def labels(world: World) -> list[int | None]:
    return [world.decode(0).reads.label(0, 0, slot) for slot in SLOTS]


def test_read_brings_the_content_of_its_blocks(world: World) -> None:
    ended: list[Read] = []
    read, reads = post(world, ended), world.decode(0).reads
    assert (reads.every(), reads.of_fetch(5), reads.of_fetch(1)) == ([read], [read], [])
    world.schedule.run(1.0)
    assert (ended, read.failed, labels(world)) == ([read], False, [content(0, 0), content(0, 4)])
    assert reads.open == {}


def test_read_sees_what_the_source_was_overwritten_with(world: World) -> None:
    post(world, [])
    world.prefill(0).pool.give_back((7, 6), 0)
    world.schedule.run(1.0)
    assert all(label is not None and label < 0 for label in labels(world))


def test_read_of_a_process_that_is_gone_fails_as_lost(world: World) -> None:
    read = post(world, [])
    world.prefill(0).readable = False
    world.schedule.run(5.0)
    assert (read.failed, read.lost) == (True, True)


def test_cancelled_read_fails_soon_and_writes_no_more(world: World) -> None:
    ended: list[Read] = []
    read = post(world, ended)
    world.decode(0).reads.cancel(read, ended.append)
    world.schedule.run(0.3)
    world.decode(0).pool.give_back((7, 6), 1)
    world.schedule.run(5.0)
    assert (ended, read.failed) == ([read], True)


def test_write_into_a_block_that_was_given_to_somebody_else_is_seen(world: World) -> None:
    post(world, [])
    world.decode(0).pool.give_back((7, 6), 1)
    world.decode(0).pool.take(2, owner=2)
    with pytest.raises(Violation, match="which fetch 2 holds"):
        world.schedule.run(5.0)


def test_write_over_what_the_target_has_is_seen(world: World) -> None:
    reads = world.decode(0).reads
    reads.close_slots(SLOTS)
    reads.open_slots(SLOTS[:1])
    post(world, [])
    with pytest.raises(Violation, match="block 6, over tokens that the target has already"):
        world.schedule.run(5.0)


def test_failing_reads_fail_at_the_named_rank_alone(world: World) -> None:
    faults = ReadFaults(CALM)
    faults.failing.append(FailingReads(0.0, 1.0, 0, 3))
    assert [faults.fails(read_of(world, rank)) for rank in (0, 3)] == [False, True]


def test_slow_reads_last_longer(world: World) -> None:
    faults, read = ReadFaults(CALM), read_of(world)
    before = faults.seconds(random.Random(1), read)
    faults.slow.append(SlowReads(0.0, 1.0, 0, 10.0))
    assert faults.seconds(random.Random(1), read) == pytest.approx(10 * before)
