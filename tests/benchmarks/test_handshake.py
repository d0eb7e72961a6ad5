from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.handshake import handshake


def test_all_ranks_get_connected_without_a_process_of_theirs(tiny: Effort) -> None:
    lines = {line.key: line for line in handshake(tiny)}
    assert list(lines) == ["handshake.time", "handshake.memory"]
    assert "3 ranks" in lines["handshake.time"].title


def test_memory_does_not_grow_with_the_blocks(tiny: Effort) -> None:
    memory = list(handshake(tiny))[1]
    assert memory.holds is True
