"""Scenarios follow from their seed alone, and all kinds of trouble come up."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from kvweave.testing.simulation.drawing import draw
from kvweave.testing.simulation.scenario import Crash, Fault, Tamper


def test_seed_alone_decides() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_number_of_requests_is_as_asked_and_engines_are_several() -> None:
    drawn = draw(7, 35)
    assert len([plan for plan in drawn.requests if plan.progress is None]) == 35
    assert len(drawn.prefill) >= 2
    assert len(drawn.decode) >= 2


def test_every_kind_of_fault_comes_up() -> None:
    kinds = Counter(type(fault) for seed in range(100) for fault in draw(seed).faults)
    assert set(kinds) == set(get_args(Fault))


def test_crashes_are_followed_by_nobody_by_namesakes_and_by_misfits() -> None:
    crashes = [fault for seed in range(300) for fault in draw(seed).faults if isinstance(fault, Crash)]
    assert any(crash.seconds is None for crash in crashes)
    assert any(crash.same_id and crash.same_address for crash in crashes)
    assert any(not crash.same_address for crash in crashes)
    assert any(crash.shape is not None for crash in crashes)


def test_references_are_falsified_in_every_way_and_ids_are_used_again() -> None:
    plans = [plan for seed in range(50) for plan in draw(seed).requests]
    assert {plan.tamper for plan in plans} == {None, *Tamper}
    ids = [plan.request_id for plan in draw(1).requests]
    assert len(set(ids)) < len(ids)


def test_some_scenarios_are_calm() -> None:
    assert 0 < sum(draw(seed).calm for seed in range(200)) < 20
