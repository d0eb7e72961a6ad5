from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.fragmented import PIECES, fragmented
from kvweave.benchmarks.source import Source


def test_every_size_stands_beside_the_incumbent(source: Source, tiny: Effort) -> None:
    lines = list(fragmented(source, tiny))
    assert [line.key for line in lines if line.key.count(".") == 1] == [
        f"fragmented.{nbytes >> 10}k" for nbytes in PIECES
    ]
    assert [value.name for value in lines[0].values][::-1][:2] == ["that without UCX threads", "NixlConnector's way"]
    assert lines[0].limit is not None and lines[0].limit.value == 5


def test_each_way_is_measured(source: Source, tiny: Effort) -> None:
    lines = {line.key for line in fragmented(source, tiny)}
    assert {"fragmented.4k.alone", "fragmented.4k.staged", "fragmented.4k.choice"} <= lines
