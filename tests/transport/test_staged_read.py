from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import MOST_PIECES
from kvweave.transport.part import Part
from kvweave.transport.rows import ReadRows
from kvweave.transport.staged_read import StagedRead

CANCELLED = TransportError(TransportErrorKind.CANCELLED, "given up")


def staged(count: int, nbytes: int, settled: bool = True) -> StagedRead:
    address = np.arange(count, dtype=np.uint64) * np.uint64(2 * nbytes) + np.uint64(4096)
    return StagedRead("peer", ReadRows(address, address, np.full(count, nbytes, np.uint64)), 1 << 20, lambda: settled)


def parts(read: StagedRead) -> Iterator[Part]:
    """All that it asks for."""
    while read.unasked:
        batch = read.next_batch()
        assert batch.times_asked == 0
        yield from (batch.part(number) for number in range(batch.slots.count))


@pytest.mark.parametrize(
    ("count", "nbytes", "chunks"),
    [
        (1, 10, 1), (64, 4096, 1), (1024, 4096, 16), (MOST_PIECES + 1, 16, 3), (3, 1 << 20, 3), (1, 5 << 19, 3),
        (1 << 14, 4096, 65),
    ],
    ids=[
        "one piece", "as many bytes as the first chunk has", "small chunks of a small read", "as many pieces",
        "large pieces", "a piece larger than a chunk", "a large read",
    ],
)  # fmt: skip
def test_chunks_are_bounded_and_together_the_whole(count: int, nbytes: int, chunks: int) -> None:
    read = staged(count, nbytes)
    found = [read.rows.take(part.start, part.stop) for part in parts(read)]
    assert len(found) == chunks
    assert sum(rows.total_bytes for rows in found) == count * nbytes
    assert all(rows.total_bytes <= 1 << 20 and len(rows) <= MOST_PIECES for rows in found)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(0, 2**32))
def test_what_a_batch_asks_for_is_what_its_rows_are(sizes: list[int], seed: int) -> None:
    """In rows of any sizes: each batch has one size, and its source's pieces are its rows."""
    dice = np.random.default_rng(seed)
    nbytes = np.array(sizes, np.uint64)
    source, target = (dice.integers(1, 2**40, len(sizes)).astype(np.uint64) for _ in range(2))
    read = StagedRead("peer", ReadRows(source, target, nbytes), 1024, lambda: True)
    covered = 0
    while read.unasked:
        batch = read.next_batch()
        rows = read.rows.take(batch.start, batch.stop)
        asked = batch.request(7, ())
        assert batch.start == covered and asked.start == 0 and asked.repeats.tolist() == [0]
        assert asked.runs.addresses().tolist() == rows.source_address.tolist()
        assert {asked.piece_bytes} == set(rows.nbytes.tolist())
        covered = batch.stop
    assert covered == len(read.rows)


def test_it_is_done_when_nothing_is_unasked_open_waiting_or_posted() -> None:
    read = staged(1, 10)
    read.next_batch()
    read.open = 1
    read.end_if_over()
    assert read.wanted
    read.open = 0
    read.read_directly(0, 1)
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
    read.next_batch()
    read.open = 1
    read.cancel(CANCELLED)
    read.read_directly(0, 64)
    assert (read.state, read.error, read.unasked, len(read.waiting)) == (ReadState.FAILED, CANCELLED, False, 0)


def test_it_does_not_end_before_its_source_is_settled() -> None:
    read = staged(1, 10, settled=False)
    read.cancel(CANCELLED)
    assert read.state is ReadState.CANCELLING
