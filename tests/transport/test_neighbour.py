from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.testing.source_process import SourceProcess
from kvweave.testing.transport_contract import MEMORY_BYTES, fresh_name, random_source, scattered
from kvweave.transport.agent_data import PROBE_BYTES, AgentData
from kvweave.transport.copying import MOST_STROKE_ROWS, CopiedPiece
from kvweave.transport.neighbour import MOST_RANGES, Neighbour
from kvweave.transport.rows import ReadRows, single

PROBE = np.frombuffer(bytearray(os.urandom(PROBE_BYTES)), np.uint8)


def ourselves(probe: bytes | None = None) -> Neighbour:
    return Neighbour("ourselves", os.getpid(), PROBE.ctypes.data, PROBE.tobytes() if probe is None else probe)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SourceProcess]:
    pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
    file = tmp_path / "memory"
    file.write_bytes(random_source().tobytes())
    process = SourceProcess(file, fresh_name("source"))
    yield process
    process.end()


def neighbour_of(source: SourceProcess) -> tuple[int, Neighbour]:
    address, agent_data = source.description()
    data = AgentData.decode(agent_data)
    return address, Neighbour(data.name, data.process, data.probe_address, data.probe)


def rows_between(source: int, target: int, places: tuple[np.ndarray, np.ndarray, np.ndarray]) -> ReadRows:
    at_source, at_target, nbytes = (np.asarray(one).astype(np.uint64) for one in places)
    return ReadRows(at_source + np.uint64(source), at_target + np.uint64(target), nbytes)


def finish(piece: CopiedPiece) -> None:
    while not piece.is_over():
        os.sched_yield()


def test_a_stroke_and_the_probe_are_what_the_system_takes_in_one_call() -> None:
    assert MOST_STROKE_ROWS <= MOST_RANGES == os.sysconf("SC_IOV_MAX") - 1


@pytest.mark.parametrize(("count", "most_bytes"), [(1, 1), (1, 8 << 20), (7, 3000), (5000, 1500), (300, 60_000)])
def test_pieces_at_random_places_arrive_and_no_others_change(
    source: SourceProcess, count: int, most_bytes: int
) -> None:
    address, neighbour = neighbour_of(source)
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


def test_a_stopped_process_is_copied_from_and_a_killed_one_is_lost(source: SourceProcess) -> None:
    address, neighbour = neighbour_of(source)
    target = np.zeros(64, np.uint8)
    stroke = neighbour.stroke(ReadRows(single(address), single(target.ctypes.data), single(64)))
    source.stop()
    neighbour.copy(stroke)
    np.testing.assert_array_equal(target, source.memory[:64])
    source.kill()
    with pytest.raises(TransportError) as caught:
        neighbour.copy(stroke)
    assert caught.value.kind is TransportErrorKind.PEER_LOST
    assert not neighbour.reachable


def test_a_process_without_that_probe_is_lost() -> None:
    assert ourselves().reachable
    assert not ourselves(bytes(PROBE_BYTES)).reachable
    piece = CopiedPiece(ourselves(bytes(PROBE_BYTES)), ReadRows(*(single(PROBE.ctypes.data) for _ in "st"), single(1)))
    piece.start()
    with pytest.raises(TransportError, match="is another one now, or has closed its transport") as caught:
        piece.is_over()
    assert caught.value.kind is TransportErrorKind.PEER_LOST


def test_memory_that_is_not_there_fails_the_piece_and_ends_the_rest() -> None:
    target = np.zeros(4 << 20, np.uint8)
    count = 4 * MOST_STROKE_ROWS
    places = np.arange(count) * 64
    nowhere = rows_between(4096, target.ctypes.data, (places, places, np.full(count, 64)))
    piece = CopiedPiece(ourselves(), nowhere)
    piece.start()
    with pytest.raises(TransportError) as caught:
        finish(piece)
    assert caught.value.kind is TransportErrorKind.UNAVAILABLE
    assert not target.any()
    piece.end()


def test_a_piece_that_is_given_up_writes_no_more() -> None:
    memory = np.ones(64 << 20, np.uint8)
    target = np.zeros(len(memory), np.uint8)
    piece = CopiedPiece(ourselves(), rows_between(memory.ctypes.data, target.ctypes.data, ([0], [0], [len(memory)])))
    assert piece.is_over()
    piece.end()
    assert not target.any()
    piece.start()
    piece.end()
    assert piece.is_over()
    target[:] = 0
    finish(piece)
    assert not target.any()
