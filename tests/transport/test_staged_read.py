from __future__ import annotations

import numpy as np
import pytest

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import MOST_PIECES
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_read import StagedRead

CANCELLED = TransportError(TransportErrorKind.CANCELLED, "given up")


def staged(count: int, nbytes: int, settled: bool = True) -> StagedRead:
    address = np.arange(count, dtype=np.uint64) * np.uint64(2 * nbytes) + np.uint64(4096)
    return StagedRead("peer", ReadRows(address, address, np.full(count, nbytes, np.uint64)), 1 << 20, lambda: settled)


@pytest.mark.parametrize(
    ("count", "nbytes", "chunks"),
    [(1, 10, 1), (1024, 4096, 4), (MOST_PIECES + 1, 16, 2), (3, 1 << 20, 3), (1, 5 << 19, 3)],
    ids=["one piece", "as many bytes as a chunk has", "as many pieces", "large pieces", "a piece larger than a chunk"],
)
def test_chunks_are_bounded_and_together_the_whole(count: int, nbytes: int, chunks: int) -> None:
    found = [rows for rows, _, _ in staged(count, nbytes).unasked]
    assert len(found) == chunks
    assert sum(rows.total_bytes for rows in found) == count * nbytes
    assert all(rows.total_bytes <= 1 << 20 and len(rows) <= MOST_PIECES for rows in found)


def test_it_is_done_when_nothing_is_unasked_open_waiting_or_posted() -> None:
    read = staged(1, 10)
    rows, _, _ = read.unasked.popleft()
    read.open = 1
    read.end_if_over()
    assert read.wanted
    read.open = 0
    read.read_directly(rows)
    read.end_if_over()
    assert read.wanted
    read.waiting.clear()
    read.end_if_over()
    assert read.state is ReadState.DONE


def test_the_rest_is_read_directly() -> None:
    read = staged(1024, 4096)
    read.read_rest_directly()
    assert not read.unasked and sum(rows.total_bytes for rows in read.waiting) == 4 << 20


def test_a_cancelled_one_asks_and_reads_no_more() -> None:
    read = staged(1024, 4096)
    rows, _, _ = read.unasked.popleft()
    read.open = 1
    read.cancel(CANCELLED)
    read.read_directly(rows)
    assert (read.state, read.error, len(read.unasked), len(read.waiting)) == (ReadState.FAILED, CANCELLED, 0, 0)


def test_it_does_not_end_before_its_source_is_settled() -> None:
    read = staged(1, 10, settled=False)
    read.cancel(CANCELLED)
    assert read.state is ReadState.CANCELLING
