"""The simulated decode engine sees a delivery that is no delivery, and reports that come twice."""

from __future__ import annotations

import pytest

from kvweave.protocol.effects import Delivered, Failed, FailureReason, Reusable
from kvweave.testing.simulation.decode import DecodeProcess
from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.scenario import RequestPlan, Scenario, Shape
from kvweave.testing.simulation.world import World

PLAN = RequestPlan(0, 0.0, 0, (0,), "request", 2, 0.0, 0.5)


@pytest.fixture
def world() -> World:
    """A request whose reads last ten seconds, one of which has passed."""
    made = World(Scenario(0, (Shape(1, 8),), (Shape(1, 8),), (PLAN,)))
    made.read_faults.fixed_seconds = 10.0
    made.schedule.run(1.0)
    return made


def engine_and_fetch(world: World) -> tuple[DecodeProcess, int]:
    engine = world.decode(0)
    return engine, next(iter(engine.transfers))


def test_delivery_before_the_reads_have_ended_is_seen(world: World) -> None:
    engine, fetch = engine_and_fetch(world)
    with pytest.raises(Violation, match="delivered while it reads"):
        engine.perform((Delivered(fetch),))


def test_delivery_of_foreign_content_is_seen(world: World) -> None:
    engine, fetch = engine_and_fetch(world)
    engine.reads.open.clear()
    with pytest.raises(Violation, match="foreign content"):
        engine.perform((Delivered(fetch),))


def test_second_report_is_seen(world: World) -> None:
    engine, fetch = engine_and_fetch(world)
    engine.perform((Failed(fetch, FailureReason.LATE, ""),))
    with pytest.raises(Violation, match="reported twice"):
        engine.perform((Failed(fetch, FailureReason.LATE, ""),))


def test_blocks_that_are_given_back_under_a_read_are_seen(world: World) -> None:
    engine, fetch = engine_and_fetch(world)
    engine.perform((Failed(fetch, FailureReason.LATE, ""),))
    with pytest.raises(Violation, match="reusable while a read writes"):
        engine.perform((Reusable(fetch),))


def test_blocks_that_are_given_back_without_a_failure_are_seen(world: World) -> None:
    engine, fetch = engine_and_fetch(world)
    with pytest.raises(Violation, match="reusable unfailed"):
        engine.perform((Reusable(fetch),))
