"""What is behind an offer is that of one run."""

from __future__ import annotations

from kvweave.testing.simulation.blocks import Blocks
from kvweave.testing.simulation.holding import Holding


def test_holding_is_of_the_run_that_owns_its_blocks() -> None:
    assert Holding(Blocks(7, (1, 2))).serial == 7
