from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.first_request import LIMIT, first_request
from kvweave.benchmarks.source import Source


def test_engines_are_opened_for_every_sample(source: Source, tiny: Effort) -> None:
    (line,) = first_request(source, tiny)
    assert [len(value.samples) for value in line.values] == [1, 1] and line.limit == LIMIT
