from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.suite import NAMES, measurements, run
from kvweave.cli.bench_command import MEASUREMENTS


def test_the_command_line_knows_the_same_names() -> None:
    assert tuple(measurements(None, Effort())) == NAMES == MEASUREMENTS  # type: ignore[arg-type]


def test_only_the_chosen_ones_run_and_are_told_of(tiny: Effort) -> None:
    begun: list[str] = []
    lines = list(run(tiny, ("first", "handshake"), begun=begun.append))
    assert begun == ["handshake", "first"]
    assert [line.key for line in lines] == ["handshake.time", "handshake.memory", "first"]
