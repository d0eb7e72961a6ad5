"""The simulated prefill engine offers prompts as it computes them, and sees chunks that outlive their transfer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kvweave.protocol.transfers import TransferBook
from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.scenario import Progress, RequestPlan, Scenario, Shape
from kvweave.testing.simulation.world import World

PROGRESS = Progress("a transfer id that nobody guesses", (4, 8, 12), 0.1)


def world_of(*progress: Progress) -> World:
    plans = tuple(
        RequestPlan(number, 0.0, 0, (0,), f"request {number}", 3, 0.0, 0.1, progress=one)
        for number, one in enumerate(progress)
    )
    return World(Scenario(0, (Shape(2, 16, mixed=True),), (Shape(2, 16, mixed=True),), plans))


def counts(*progress: Progress) -> Counter[str]:
    world = world_of(*progress)
    world.run()
    return world.ledger.counts


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"chunks offered": 2, "offers": 1, "followed to the end": 1}),
        ({"preempted": (1, 3)}, {"preempted": 2, "offers": 1, "followed to the end": 1}),
        ({"given_up": 2}, {"given up while prefilled": 1, "offers": 0, "followed, failed: withdrawn": 1}),
        ({"begin_after": None}, {"transfers begun": 0, "followed": 1, "followed to the end": 0}),
        ({"follow_after": ()}, {"followed": 0, "offers": 1, "delivered": 0}),
        ({"follow_after": (), "handed_over": True}, {"followed": 0, "offers": 1, "delivered": 1}),
        ({"start_token": 7}, {"followed to the end": 1}),
    ],
    ids=["plain", "preempted", "given up", "never begun", "never followed", "handed over instead", "some is there"],
)
def test_prompt_ends_as_planned(changes: dict[str, object], expected: dict[str, int]) -> None:
    found = counts(replace(PROGRESS, **changes))
    assert {name: found[name] for name in expected} == expected


def test_two_prompts_of_one_id_are_not_prefilled_at_once() -> None:
    assert counts(PROGRESS, PROGRESS)["transfer ids that another prompt has"] == 1


class _Unwithdrawn(TransferBook):
    def abandon(self, transfer_id: str, reason: object) -> tuple[tuple[object, ...], tuple[object, ...]]:
        return super().abandon(transfer_id, reason)[0], ()


def test_chunk_that_nobody_reads_and_that_outlives_its_transfer_is_seen() -> None:
    world = world_of(replace(PROGRESS, given_up=2, follow_after=()))
    world.prefill(0).side.transfers = _Unwithdrawn()
    with pytest.raises(Violation, match="of a transfer that is over"):
        world.run()
