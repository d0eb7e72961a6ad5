"""One seed from its scenario to its outcome, and a failing one to the smallest scenario that still fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kvweave.testing.simulation.drawing import draw
from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.plants import NO_PLANT, Plant
from kvweave.testing.simulation.scenario import Progress, RequestPlan, Scenario, Weather
from kvweave.testing.simulation.world import World

MOST_SHRINKING_RUNS = 600

Value = TypeVar("Value", Scenario, RequestPlan, Weather, Progress)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: ``violation`` is None when every rule held. ``digest`` is equal for equal runs."""

    seed: int
    violation: str | None
    digest: str
    steps: int
    counts: Mapping[str, int]
    trace: tuple[str, ...] = ()


def simulate(scenario: Scenario, plant: Plant = NO_PLANT, traced: bool = False) -> Outcome:
    """Runs a scenario."""
    world = World(scenario, plant, traced)
    violation = None
    try:
        world.run()
    except Violation as error:
        violation = str(error)
    ledger = world.ledger
    return Outcome(
        scenario.seed, violation, ledger.digest, world.schedule.steps, dict(ledger.counts), tuple(ledger.trace or ())
    )


def simulate_seed(seed: int, requests: int = 20, plant: Plant = NO_PLANT, traced: bool = False) -> Outcome:
    """Draws the scenario of a seed and runs it."""
    return simulate(draw(seed, requests), plant, traced)


def shrink(scenario: Scenario, plant: Plant = NO_PLANT) -> Scenario:
    """The scenario with as few requests and faults, and as little trouble in each, as still breaks a rule.

    A scenario that breaks none is returned as it is.
    """
    if simulate(scenario, plant).violation is None:
        return scenario
    runs = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(scenario):
            runs += 1
            if runs > MOST_SHRINKING_RUNS:
                return scenario
            if simulate(candidate, plant).violation is not None:
                scenario, smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with less in them, the boldest first."""
    for name in ("requests", "faults"):
        held = getattr(scenario, name)
        size = len(held)
        while size:
            for start in range(0, len(held), size):
                yield _with(scenario, name, held[:start] + held[start + size :])
            size //= 2
    weather = scenario.weather
    for name in ("lost", "repeated", "late", "long_reads", "clock_drift"):
        if getattr(weather, name):
            yield replace(scenario, weather=_with(weather, name, 0.0))
    if scenario.named_peers:
        yield replace(scenario, named_peers=False)
    for place, plan in enumerate(scenario.requests):
        for simpler in _simpler(plan):
            yield replace(scenario, requests=(*scenario.requests[:place], simpler, *scenario.requests[place + 1 :]))


def _simpler(plan: RequestPlan) -> Iterator[RequestPlan]:
    changes = {
        "abort_after": None, "withdraw_after": None, "queue_seconds": None, "lease_seconds": None, "resent": (),
        "decode": plan.decode[:1], "blocks": 1,
    }  # fmt: skip
    for name, value in changes.items():
        if getattr(plan, name) != value:
            yield _with(plan, name, value)
    if plan.progress is not None:
        for simpler in _simpler_progress(plan.progress):
            yield _with(plan, "progress", simpler)


def _simpler_progress(progress: Progress) -> Iterator[Progress]:
    changes = {
        "preempted": progress.preempted[1:], "given_up": None, "start_token": 0, "handed_over": False, "told": False,
        "mistake": None, "steps": progress.steps[:-1] or progress.steps,
    }  # fmt: skip
    for name, value in changes.items():
        if getattr(progress, name) != value:
            yield _with(progress, name, value)


def _with(value: Value, name: str, held: object) -> Value:
    changes: dict[str, Any] = {name: held}
    return replace(value, **changes)
