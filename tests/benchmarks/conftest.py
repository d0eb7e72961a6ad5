"""One source process for all short runs, and how little they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.source import Source

TINY = Effort(
    large_bytes=1 << 20, request_bytes=1 << 20, loop_bytes=1 << 19, loop_requests=4, fragmented_bytes=1 << 20,
    overhead_blocks=4, ranks=3, many_blocks=2_000, rounds=1, openings=1,
)  # fmt: skip


@pytest.fixture(scope="session")
def source() -> Iterator[Source]:
    with Source() as opened:
        yield opened


@pytest.fixture(scope="session")
def tiny() -> Effort:
    return TINY
