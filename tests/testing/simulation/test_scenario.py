"""A scenario knows when it is calm: nothing new happens, and no fault lasts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvweave.testing.simulation.scenario import CALM, Place, Progress, RequestPlan, Role, Scenario, Shape, Stop, Weather

PLAN = RequestPlan(0, 3.0, 0, (0,), "request", 1, 0.5, 0.1, queue_seconds=2.0, resent=(1.0, 4.0))
STOP = Stop(1.0, Place(Role.DECODE, 0), 20.0)


def scenario(**changes: object) -> Scenario:
    return Scenario(0, (Shape(1, 4),), (Shape(1, 4),), **({"requests": ()} | changes))


def test_it_is_calm_when_the_last_reference_has_come_and_the_last_fault_is_over() -> None:
    assert scenario(requests=(PLAN,)).calm_at >= 3.0 + 0.5 + 5.0 + 2.0
    assert scenario(requests=(PLAN,), faults=(STOP,)).calm_at >= 21.0


@pytest.mark.parametrize(
    ("changes", "calm"),
    [({}, True), ({"faults": (STOP,)}, False), ({"weather": Weather(lost=0.1)}, False), ({"weather": CALM}, True)],
    ids=["nothing", "a fault", "lossy", "calm weather"],
)
def test_calm_is_without_fault_and_weather(changes: dict[str, object], calm: bool) -> None:
    assert scenario(**changes).calm is calm


def test_places_name_themselves() -> None:
    assert str(Place(Role.PREFILL, 1)) == "prefill 1"


def test_length_of_a_prompt_is_that_of_its_blocks_or_of_its_last_step() -> None:
    followed = replace(PLAN, progress=Progress("id", (3, 7), 0.5))
    assert (PLAN.num_tokens, followed.num_tokens) == (4, 7)


def test_it_is_not_calm_before_all_steps_are_planned_to_be_over() -> None:
    progress = Progress("id", (3, 7), 0.5, begin_after=1.0, follow_after=(2.0,), preempted=(1,))
    assert progress.seconds >= 1.0 + 0.5 * 4
    assert scenario(requests=(replace(PLAN, progress=progress),)).calm_at >= 3.0 + progress.seconds
