"""The simulated decode engine sees a delivery that is no delivery, and reports that come twice or are untrue."""

from __future__ import annotations

import pytest

from kvweave.protocol.effects import Delivered, Failed, FailureReason, Reusable
from kvweave.testing.simulation.decode import DecodeProcess
from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.scenario import Mistake, Progress, RequestPlan, Scenario, Shape
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


def test_failure_of_what_was_taken_as_if_the_engine_closed_is_seen(world: World) -> None:
    engine, fetch = engine_and_fetch(world)
    engine.transfers[fetch].taken = True
    with pytest.raises(Violation, match="as if the engine closed"):
        engine.perform((Failed(fetch, FailureReason.CLOSED, ""),))


def follow(progress: Progress) -> World:
    """A prompt of 11 tokens that is prefilled in three steps, and followed."""
    plan = RequestPlan(0, 0.0, 0, (0,), "request", 3, 0.0, 0.5, progress=progress)
    shape = Shape(1, 12, mixed=True)
    return World(Scenario(0, (shape,), (shape,), (plan,)))


PROGRESS = Progress("a transfer id that nobody guesses", (3, 8, 11), 0.5)


def test_followed_prompt_is_read_in_parts_and_delivered_once() -> None:
    world = follow(PROGRESS)
    world.run()
    counts = world.ledger.counts
    assert (counts["chunks fetched"], counts["final offers fetched"], counts["followed to the end"]) == (2, 1, 1)


def test_delivery_of_a_chunk_as_if_it_were_all_is_seen() -> None:
    world = follow(PROGRESS)
    world.schedule.run(0.8)
    engine, fetch = engine_and_fetch(world)
    engine.reads.open.clear()
    with pytest.raises(Violation, match="its reference is a false one"):
        engine.perform((Delivered(fetch),))


@pytest.mark.parametrize("mistake", Mistake)
def test_wrongly_named_prompt_is_never_an_answer(mistake: Mistake) -> None:
    world = follow(Progress(PROGRESS.transfer_id, PROGRESS.steps, 0.5, told=True, mistake=mistake))
    world.run()
    assert world.ledger.counts["followed, failed: wrong_reference"] == 1
