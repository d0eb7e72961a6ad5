"""A read ends when no piece waits and none is under way, however it ends."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES
from kvweave.transport.base import ReadState
from kvweave.transport.piecewise import MOST_POST_BYTES, MOST_POST_ROWS, PiecewiseRead, ProbeRead
from kvweave.transport.rows import ReadRows

CANCELLED = TransportError(TransportErrorKind.CANCELLED, "given up")


def rows(count: int, nbytes: int) -> ReadRows:
    addresses = np.arange(count, dtype=np.uint64) * np.uint64(nbytes) + np.uint64(4096)
    return ReadRows(addresses, addresses, np.full(count, nbytes, dtype=np.uint64))


@pytest.mark.parametrize(
    ("count", "nbytes"), [(3 * MOST_POST_ROWS + 1, 16), (3, MOST_POST_BYTES), (1, 16)], ids=["rows", "bytes", "one"]
)
def test_pieces_are_bounded_and_together_the_whole(count: int, nbytes: int) -> None:
    pieces = list(PiecewiseRead("peer", rows(count, nbytes)).waiting)
    assert all(len(piece) <= MOST_POST_ROWS and piece.total_bytes <= MOST_POST_BYTES for piece in pieces)
    assert sum(piece.total_bytes for piece in pieces) == count * nbytes


def test_a_read_is_over_when_its_last_piece_is() -> None:
    read = PiecewiseRead("peer", rows(1, 16))
    read.posted.append(read.waiting.popleft())
    read.end_if_over()
    assert read.state is ReadState.IN_PROGRESS
    read.posted.clear()
    read.end_if_over()
    assert read.state is ReadState.DONE


def test_cancelling_lets_posted_pieces_end_first() -> None:
    read = PiecewiseRead("peer", rows(MOST_POST_ROWS + 1, 16))
    read.posted.append(read.waiting.popleft())
    read.cancel(CANCELLED)
    assert (read.state, len(read.waiting)) == (ReadState.CANCELLING, 0)
    read.posted.clear()
    read.end_if_over()
    assert (read.state, read.error) == (ReadState.FAILED, CANCELLED)


def test_cancelling_what_was_never_posted_ends_at_once() -> None:
    read = PiecewiseRead("peer", rows(5, 16))
    read.cancel(CANCELLED)
    assert read.state is ReadState.FAILED


@pytest.mark.parametrize("found", [b"p" * PROBE_BYTES, b"q" * PROBE_BYTES], ids=["own", "another's"])
def test_a_probe_knows_its_peers_bytes(found: bytes) -> None:
    landing = np.frombuffer(bytearray(found), dtype=np.uint8)
    wrong = ProbeRead("peer", 4096, landing, b"p" * PROBE_BYTES).wrong_bytes()
    assert (wrong is None) == (found[:1] == b"p")
    assert wrong is None or (wrong.kind is TransportErrorKind.REJECTED and found.hex() in str(wrong))
