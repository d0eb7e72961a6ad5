"""The simulated ranks read large requests in stripes, and what failed from the replicas that are left."""

from __future__ import annotations

import pytest

from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.reads import Read
from kvweave.testing.simulation.scenario import LARGE_HEAD, FailingReads, RequestPlan, Scenario, Shape
from kvweave.testing.simulation.world import World


def one_head(tp: int) -> Shape:
    return Shape(tp, 16, heads=1, head_size=LARGE_HEAD)


def reading(blocks: int, *failing: int) -> World:
    """Four prefill ranks that hold the same, and one decode rank that reads from them, the reads under way."""
    plan = RequestPlan(0, 0.0, 0, (0,), "request", blocks, 0.0, 0.1)
    faults = tuple(FailingReads(0.0, 10.0, 0, rank) for rank in failing)
    world = World(Scenario(0, (one_head(4),), (one_head(1),), (plan,), faults))
    world.read_faults.fixed_seconds = 1.0
    world.schedule.run(0.5)
    return world


def reads(world: World) -> list[Read]:
    return world.decode(0).reads.every()


@pytest.mark.parametrize(("blocks", "sources"), [(1, 1), (4, 4)], ids=["small", "large"])
def test_large_request_is_read_from_all_replicas_at_once(blocks: int, sources: int) -> None:
    world = reading(blocks)
    assert len({read.source_rank for read in reads(world) if any(piece == 0 for piece, _, _ in read.copies)}) == sources
    world.run()
    assert world.ledger.counts["delivered"] == 1


def test_what_failed_is_read_from_the_replicas_that_are_left() -> None:
    world = reading(4, 1)
    counts = world.ledger.counts
    while not counts["stripes read again"] and world.schedule.now < 5.0:
        world.schedule.run(world.schedule.now + 0.1)
    assert reads(world) and all(read.source_rank != 1 for read in reads(world))
    world.run()
    assert (counts["stripes read again"], counts["delivered"]) == (1, 1)


def test_what_no_replica_gives_fails() -> None:
    world = reading(4, 0, 1, 2, 3)
    world.run()
    assert world.ledger.counts["failed: read_failed"] == 1


def test_reading_anew_before_the_end_is_seen() -> None:
    world = reading(1)
    ranks = world.decode(0).ranks
    (fetching,) = ranks.fetching.values()
    with pytest.raises(Violation, match="reads anew while"):
        ranks.submit(fetching.command, lambda _: fetching.owner)


def test_nothing_is_kept_of_what_is_over() -> None:
    world = reading(1)
    address = world.prefill(0).address
    assert world.decode(0).ranks.source(address) is world.prefill(0)
    world.run()
    assert world.decode(0).ranks.fetching == {}
