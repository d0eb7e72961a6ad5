"""Each planted fault is found: the simulation sees what the check that is left out is for."""

from __future__ import annotations

import pytest

from kvweave.testing.simulate import run_seeds
from kvweave.testing.simulation.plants import PLANTS
from kvweave.testing.simulation.run import simulate_seed

FOUND_AT = {
    "generation": 27, "lease": 291, "rank-count": 0, "all-reads": 0, "grant": 1, "first-claim": 3, "claim-number": 58,
    "retry": 4, "closing": 13, "preempted": 27, "provisional": 27, "one-part": 3, "final-grant": 42, "window": 108,
    "state": 5, "abandon": 8, "drain": 211, "stripe": 3, "stripe-again": 24,
}  # fmt: skip
"""The first seed that finds each."""


@pytest.mark.parametrize("name", PLANTS)
def test_planted_fault_is_found(name: str) -> None:
    first = FOUND_AT[name]
    assert run_seeds(range(first, first + 1), plant=name).failures, f"seed {first} does not find {name} any more"


@pytest.mark.parametrize("seed", sorted(set(FOUND_AT.values())))
def test_same_seeds_hold_every_rule_without_it(seed: int) -> None:
    assert simulate_seed(seed).violation is None
