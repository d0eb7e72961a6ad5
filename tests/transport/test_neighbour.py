"""Only the process that the agent data came from is copied from, alive or stopped, and every failure has its name."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.transport.neighbours import PROBE, another_process, ourselves, rows_between

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES
from kvweave.transport.neighbour import MOST_RANGES, Neighbour
from kvweave.transport.rows import ReadRows, single

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)


def test_a_stroke_and_the_probe_are_what_the_system_takes_in_one_call() -> None:
    assert os.sysconf("SC_IOV_MAX") - 1 == MOST_RANGES


def test_a_stroke_may_be_copied_again() -> None:
    memory, target = np.zeros(3000, np.uint8), np.zeros(3000, np.uint8)
    stroke = ourselves().stroke(rows_between(memory.ctypes.data, target.ctypes.data, ([0, 2000], [1000, 7], [9, 800])))
    for value in (1, 2):
        memory[:] = value
        ourselves().copy(stroke)
        assert (target[1000:1009] == value).all() and (target[7:807] == value).all()
        assert not target[:7].any() and not target[807:1000].any() and not target[1009:].any()


def test_a_stopped_process_is_copied_from_and_a_killed_one_is_lost() -> None:
    with another_process() as (source, address, neighbour):
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
    stranger = ourselves(bytes(PROBE_BYTES))
    assert not stranger.reachable
    with pytest.raises(TransportError, match="is another one now, or has closed its transport") as caught:
        stranger.copy(stranger.stroke(ReadRows(*(single(PROBE.ctypes.data) for _ in "st"), single(1))))
    assert caught.value.kind is TransportErrorKind.PEER_LOST


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1, 2**31, 2**64 - 1])
def test_a_number_of_no_process_is_not_reachable(pid: int) -> None:
    assert not Neighbour("nobody", pid, PROBE.ctypes.data, PROBE.tobytes()).reachable


@pytest.mark.parametrize(("count", "text"), [(1, "Bad address"), (2, "of 145 bytes could be copied")])
def test_memory_that_is_not_there_is_named(count: int, text: str) -> None:
    memory, target = np.ones(64, np.uint8), np.zeros(256, np.uint8)
    source = np.array([memory.ctypes.data, 4096], np.uint64)[-count:]
    places = target.ctypes.data + np.arange(count, dtype=np.uint64) * np.uint64(64)
    stroke = ourselves().stroke(ReadRows(source, places, np.array([64, 65], np.uint64)[:count]))
    with pytest.raises(TransportError, match=text) as caught:
        ourselves().copy(stroke)
    assert caught.value.kind is TransportErrorKind.UNAVAILABLE
