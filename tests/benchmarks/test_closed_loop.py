from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.closed_loop import SPEED_LIMIT, TAIL_LIMIT, closed_loop
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.source import Source


def test_speed_and_tail_have_their_limits(source: Source, tiny: Effort) -> None:
    speed, tail = closed_loop(source, tiny)
    assert (speed.limit, tail.limit) == (SPEED_LIMIT, TAIL_LIMIT)
    assert len(tail.values[0].samples) == tiny.loop_requests
    assert tail.ratio is not None and tail.ratio >= 1
