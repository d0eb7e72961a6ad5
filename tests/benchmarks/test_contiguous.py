from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.contiguous import LIMIT, contiguous
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.source import Source


def test_a_short_run_has_all_three_contenders(source: Source, tiny: Effort) -> None:
    (line,) = contiguous(source, tiny)
    assert [value.name for value in line.values] == ["kvweave", "raw NIXL read", "memcpy"]
    assert line.ratio is not None and line.ratio > 0 and line.limit == LIMIT
