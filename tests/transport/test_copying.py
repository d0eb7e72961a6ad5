"""Pieces arrive whoever copies them, fail as a whole, and write no more once they are given up."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import SimpleQueue

import numpy as np
import pytest
from tests.transport.neighbours import another_process, ourselves, rows_between

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.testing.transport_contract import MEMORY_BYTES, scattered
from kvweave.transport.copying import MOST_STROKE_ROWS, CopiedPiece, _Helpers
from kvweave.transport.neighbour import MOST_RANGES, Neighbour, Stroke

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)


def finish(piece: CopiedPiece) -> None:
    while not piece.is_over():
        os.sched_yield()


def test_a_stroke_fits_one_call() -> None:
    assert MOST_STROKE_ROWS <= MOST_RANGES


@pytest.mark.parametrize(("count", "most_bytes"), [(1, 1), (1, 8 << 20), (7, 3000), (5000, 1500), (300, 60_000)])
def test_pieces_at_random_places_arrive_and_no_others_change(count: int, most_bytes: int) -> None:
    with another_process() as (source, address, neighbour):
        target = np.zeros(MEMORY_BYTES, np.uint8)
        places = scattered(count, most_bytes, seed=count)
        piece = CopiedPiece(neighbour, rows_between(address, target.ctypes.data, places))
        expected = np.zeros(MEMORY_BYTES, np.uint8)
        for begin, end, nbytes in zip(*places, strict=True):
            expected[end : end + nbytes] = source.memory[begin : begin + nbytes]
        for _ in range(3):
            target[:] = 0
            piece.start()
            finish(piece)
            np.testing.assert_array_equal(target, expected)


def test_one_stroke_that_fails_fails_the_piece() -> None:
    memory, target = np.ones(4 << 20, np.uint8), np.zeros(4 << 20, np.uint8)
    places = np.arange(4 * MOST_STROKE_ROWS) * 64
    rows = rows_between(memory.ctypes.data, target.ctypes.data, (places, places, np.full(len(places), 64)))
    rows.source_address[MOST_STROKE_ROWS] = 4096
    piece = CopiedPiece(ourselves(), rows)
    piece.start()
    with pytest.raises(TransportError) as caught:
        finish(piece)
    assert caught.value.kind is TransportErrorKind.UNAVAILABLE
    piece.end()


def test_a_piece_that_is_given_up_writes_no_more() -> None:
    memory = np.ones(64 << 20, np.uint8)
    target = np.zeros(len(memory), np.uint8)
    piece = CopiedPiece(ourselves(), rows_between(memory.ctypes.data, target.ctypes.data, ([0], [0], [len(memory)])))
    with pytest.raises(TransportError, match="not started"):
        piece.is_over()
    piece.end()
    assert not target.any()
    piece.start()
    piece.end()
    target[:] = 0
    finish(piece)
    assert not target.any()


def test_whatever_goes_wrong_in_a_helper_fails_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, target = np.ones(16 << 20, np.uint8), np.zeros(16 << 20, np.uint8)
    piece = CopiedPiece(ourselves(), rows_between(memory.ctypes.data, target.ctypes.data, ([0], [0], [len(memory)])))

    def unforeseen(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Neighbour, "copy", unforeseen)
    piece.start()
    with pytest.raises(TransportError, match="copying failed: MemoryError"):
        finish(piece)


def test_a_piece_whose_starter_was_interrupted_has_failed_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, target = np.ones(16 << 20, np.uint8), np.zeros(16 << 20, np.uint8)
    piece = CopiedPiece(ourselves(), rows_between(memory.ctypes.data, target.ctypes.data, ([0], [0], [len(memory)])))
    copy, here = Neighbour.copy, threading.get_ident()

    def interrupted(neighbour: Neighbour, stroke: Stroke) -> None:
        if threading.get_ident() == here:
            raise KeyboardInterrupt
        copy(neighbour, stroke)

    monkeypatch.setattr(Neighbour, "copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        piece.start()
    with pytest.raises(TransportError, match="KeyboardInterrupt"):
        finish(piece)
    piece.end()


class Looking:
    """Work for a helper: says what niceness it has."""

    def __init__(self) -> None:
        self.niceness: SimpleQueue[int] = SimpleQueue()

    def work(self) -> None:
        self.niceness.put(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))


def test_helpers_take_their_turns_like_others() -> None:
    """Also where the thread that made them has better ones, if the system lets it have those."""
    usual, looking = os.getpriority(os.PRIO_PROCESS, os.getpid()), Looking()

    def run() -> None:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual - 1)
        _Helpers(1).ask(looking, 1)

    maker = threading.Thread(target=run)
    maker.start()
    maker.join()
    assert looking.niceness.get(timeout=60) == usual
