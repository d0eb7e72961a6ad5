"""A run follows from its scenario to the last bit, in every process; a failing one is shrunk."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvweave.testing.simulation.drawing import draw
from kvweave.testing.simulation.plants import PLANTS
from kvweave.testing.simulation.run import shrink, simulate, simulate_seed

SEED = 11


def test_replay_is_exact_traced_or_not() -> None:
    first, second = simulate_seed(SEED), simulate_seed(SEED, traced=True)
    assert (first.digest, first.steps, first.counts) == (second.digest, second.steps, second.counts)
    assert (first.trace, bool(second.trace)) == ((), True)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_replay_is_exact_in_another_process(hash_seed: str) -> None:
    program = f"from kvweave.testing.simulation.run import simulate_seed; print(simulate_seed({SEED}).digest)"
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == simulate_seed(SEED).digest


def test_other_seeds_are_other_runs() -> None:
    assert simulate_seed(SEED).digest != simulate_seed(SEED + 1).digest


def test_shrunk_scenario_still_fails_with_less_in_it() -> None:
    plant, whole = PLANTS["all-reads"], draw(0)
    small = shrink(whole, plant)
    assert simulate(small, plant).violation is not None
    assert len(small.requests) == 1
    assert small.faults == ()


def test_scenario_that_holds_is_left_as_it_is() -> None:
    assert shrink(draw(SEED)) == draw(SEED)
