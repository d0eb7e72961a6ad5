"""Replicas and progressive transfers are drawn with every trouble, beside ordinary requests that stay as they are."""

from __future__ import annotations

import random
from dataclasses import replace

from kvweave.testing.simulation.drawing import draw
from kvweave.testing.simulation.scenario import CALM, LARGE_HEAD, Mistake, Progress, RequestPlan, Scenario, Shape
from kvweave.testing.simulation.ways import moment, with_ways

SCENARIOS = [draw(seed) for seed in range(150)]
FOLLOWED = [plan.progress for scenario in SCENARIOS for plan in scenario.requests if plan.progress]


def ordinary(seed: int) -> Scenario:
    plan = RequestPlan(0, 0.0, 0, (0,), "request", 2, 0.0, 0.1)
    plans = tuple(replace(plan, number=number) for number in range(20))
    return Scenario(seed, (Shape(1, 8),), (Shape(1, 8),), plans, weather=CALM)


def test_ordinary_requests_and_faults_stay_as_they_are() -> None:
    for seed in range(20):
        drawn = with_ways(ordinary(seed), calm=False)
        assert [plan for plan in drawn.requests if plan.progress is None] == list(ordinary(seed).requests)


def test_many_scenarios_have_stripes_some_progressive_transfers_and_some_neither() -> None:
    striped = [scenario.prefill[0].head_size == LARGE_HEAD for scenario in SCENARIOS]
    followed = [any(plan.progress for plan in scenario.requests) for scenario in SCENARIOS]
    assert {(one, two) for one, two in zip(striped, followed, strict=True)} == {
        (one, two) for one in (False, True) for two in (False, True)
    }


def test_engines_of_one_scenario_have_one_model() -> None:
    for scenario in SCENARIOS:
        assert len({(s.heads, s.head_size, s.mixed) for s in (*scenario.prefill, *scenario.decode)}) == 1


def test_every_trouble_of_progressive_transfers_comes_up() -> None:
    assert {one.mistake for one in FOLLOWED} == {None, *Mistake}
    assert any(one.begin_after is None for one in FOLLOWED)
    assert any(not one.follow_after for one in FOLLOWED)
    assert any(one.given_up is not None for one in FOLLOWED)
    assert any(len(one.preempted) > 1 for one in FOLLOWED)
    assert any(one.handed_over and one.follow_after for one in FOLLOWED)
    assert any(len(one.follow_after) > 1 for one in FOLLOWED)
    assert any(0 < one.start_token <= one.steps[-1] for one in FOLLOWED)


def test_calm_ones_have_preemptions_alone() -> None:
    drawn = [with_ways(ordinary(seed), calm=True) for seed in range(60)]
    found: list[Progress] = [plan.progress for scenario in drawn for plan in scenario.requests if plan.progress]
    assert all(one.follow_after and one.begin_after is not None and one.given_up is None for one in found)
    assert any(one.preempted for one in found)
    assert all(not scenario.faults for scenario in drawn)


def test_moments_are_of_every_order_of_magnitude() -> None:
    dice = random.Random(1)
    drawn = [moment(dice) for _ in range(200)]
    assert min(drawn) < 0.002 and max(drawn) > 2.0
