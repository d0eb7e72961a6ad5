from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from kvweave.core.layout import Region
from kvweave.errors import TransportError, TransportErrorKind
from kvweave.testing.transport_contract import (
    MEMORY_BYTES,
    TransportContract,
    TransportPair,
    assert_failed,
    fresh_name,
    random_source,
    region_of,
)  # fmt: skip
from kvweave.transport.base import ReadHandle, ReadRows, ReadState
from kvweave.transport.faults import Fault, FaultRates, FaultSource, no_faults, scripted_faults, seeded_faults
from kvweave.transport.memory import MemoryNetwork


class TestContract(TransportContract):
    """With a delay, so that there is something under way."""

    @staticmethod
    @contextmanager
    def make_pair() -> Iterator[TransportPair]:
        network = MemoryNetwork()
        source = network.join(fresh_name("source"))
        target = network.join(fresh_name("target"), lambda: Fault(delay=3))
        source_memory, target_memory = random_source(), np.zeros(MEMORY_BYTES, np.uint8)
        source.register([region_of(source_memory)])
        target.register([region_of(target_memory)])

        def progress() -> None:
            source.progress()
            target.progress()

        yield TransportPair(
            target, source_memory, source_memory.ctypes.data, target_memory, source.agent_data(), progress
        )


class Pair:
    """100 source bytes that count up, 100 target bytes of zero, connected."""

    def __init__(self, faults: FaultSource = no_faults) -> None:
        self.network = MemoryNetwork()
        self.source = self.network.join("source")
        self.target = self.network.join("target", faults)
        self.source_memory = np.arange(1, 101, dtype=np.uint8)
        self.target_memory = np.zeros(100, np.uint8)
        self.source.register([region_of(self.source_memory)])
        self.target.register([region_of(self.target_memory)])
        connection = self.target.connect(self.source.agent_data())
        self.source.progress()
        self.target.progress()
        assert connection.state is ReadState.DONE

    def read_all(self) -> ReadHandle:
        offset = np.arange(100, dtype=np.uint64)
        source, target = self.source_memory.ctypes.data, self.target_memory.ctypes.data
        return self.target.read(
            "source", ReadRows(offset + np.uint64(source), offset + np.uint64(target), np.ones(100, np.uint64))
        )

    def progress(self, calls: int = 1) -> None:
        for _ in range(calls):
            self.target.progress()

    def arrived(self) -> list[int]:
        return np.flatnonzero(self.target_memory).tolist()


def test_a_delayed_read_copies_a_part_in_each_progress() -> None:
    pair = Pair(scripted_faults([Fault(delay=3)]))
    handle = pair.read_all()
    arrived = []
    for _ in range(4):
        assert handle.state is ReadState.IN_PROGRESS
        pair.progress()
        arrived.append(len(pair.arrived()))
    assert (arrived, handle.state) == ([25, 50, 75, 100], ReadState.DONE)


def test_a_source_written_during_a_delayed_read_arrives_torn() -> None:
    pair = Pair(scripted_faults([Fault(delay=1)]))
    pair.read_all()
    pair.progress()
    pair.source_memory[:] = 255
    pair.progress()
    assert pair.target_memory.tolist() == [*range(1, 51), *[255] * 50]


def test_reversed_rows_arrive_from_the_last_to_the_first() -> None:
    pair = Pair(scripted_faults([Fault(delay=1, reversed_rows=True)]))
    pair.read_all()
    pair.progress()
    assert pair.arrived() == list(range(50, 100))


def test_a_dropped_read_never_ends_until_it_is_cancelled() -> None:
    pair = Pair(scripted_faults([Fault(dropped=True)]))
    handle = pair.read_all()
    pair.progress(1000)
    assert handle.state is ReadState.IN_PROGRESS
    pair.target.cancel(handle)
    pair.progress()
    assert_failed(handle, TransportErrorKind.CANCELLED)


@pytest.mark.parametrize("kind", list(TransportErrorKind))
def test_a_failing_read_leaves_the_part_it_copied(kind: TransportErrorKind) -> None:
    pair = Pair(scripted_faults([Fault(copied=0.3, error=kind)]))
    handle = pair.read_all()
    pair.progress()
    assert_failed(handle, kind)
    assert pair.arrived() == list(range(30))


def test_a_late_write_comes_after_the_read_was_done() -> None:
    pair = Pair(scripted_faults([Fault(late_write=2)]))
    handle = pair.read_all()
    pair.progress()
    assert handle.state is ReadState.DONE
    pair.target_memory[:] = 0
    pair.progress(2)
    assert pair.arrived() == []
    pair.progress()
    assert len(pair.arrived()) == 100


def test_reads_complete_out_of_order_by_their_delays() -> None:
    pair = Pair(scripted_faults([Fault(delay=5), Fault(delay=1), Fault()]))
    handles = [pair.read_all() for _ in range(3)]
    finished: list[int] = []
    while len(finished) < 3:
        pair.progress()
        finished += [n for n, handle in enumerate(handles) if handle.state.terminal and n not in finished]
    assert finished == [2, 1, 0]


def test_a_killed_source_loses_its_readers() -> None:
    pair = Pair(scripted_faults([Fault(delay=1), Fault(delay=1)]))
    reads = [pair.read_all(), pair.read_all()]
    pair.progress()
    pair.network.kill(pair.source)
    pair.progress()
    for handle in (*reads, pair.read_all()):
        assert_failed(handle, TransportErrorKind.PEER_LOST)


def test_a_killed_source_gives_no_late_bytes() -> None:
    pair = Pair(scripted_faults([Fault(late_write=0)]))
    pair.read_all()
    pair.progress()
    pair.target_memory[:] = 0
    pair.network.kill(pair.source)
    pair.progress(5)
    assert pair.arrived() == []


def test_the_data_of_a_killed_source_connects_to_nobody_and_a_new_one_of_that_name_works() -> None:
    pair = Pair()
    data = pair.source.agent_data()
    pair.network.kill(pair.source)
    pair.target.disconnect("source")
    assert_failed(pair.target.connect(data), TransportErrorKind.PEER_LOST)
    restarted = pair.network.join("source")
    restarted.register([region_of(pair.source_memory)])
    pair.target.connect(restarted.agent_data())
    handle = pair.read_all()
    pair.progress()
    assert handle.state is ReadState.DONE


def test_a_restarted_source_of_the_same_name_must_be_disconnected_first() -> None:
    pair = Pair()
    restarted = pair.network.join("source")
    with pytest.raises(TransportError, match="disconnect that peer first"):
        pair.target.connect(restarted.agent_data())


def test_a_connection_waits_for_the_progress_of_the_source() -> None:
    network = MemoryNetwork()
    source, target = network.join("source"), network.join("target")
    connection = target.connect(source.agent_data())
    for _ in range(100):
        target.progress()
    assert connection.state is ReadState.IN_PROGRESS
    source.progress()
    target.progress()
    assert connection.state is ReadState.DONE


@pytest.mark.parametrize("device", [0, 3])
def test_memory_of_a_kind_and_device_is_found_by_both(device: int) -> None:
    network = MemoryNetwork()
    source, target = network.join("source"), network.join("target")
    source_memory, target_memory = np.arange(1, 9, dtype=np.uint8), np.zeros(8, np.uint8)
    source.register([Region(source_memory.ctypes.data, 8, "VRAM", 3)])
    target.register([region_of(target_memory)])
    target.connect(source.agent_data())
    places = [np.array([value], np.uint64) for value in (source_memory.ctypes.data, target_memory.ctypes.data, 8)]
    handle = target.read("source", ReadRows(*places, source_memory="VRAM", source_device=device))
    target.progress()
    assert (handle.state is ReadState.DONE) == (device == 3)


RATES = FaultRates(most_delay=6, dropped=0.1, failed=0.3, late_write=0.3, reversed_rows=0.5)


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        pair = Pair(seeded_faults(seed, RATES))
        handles = [pair.read_all() for _ in range(50)]
        seen = []
        for _ in range(20):
            pair.source_memory += np.uint8(1)
            pair.progress()
            seen.append((",".join(handle.state for handle in handles), pair.target_memory.tobytes()))
        return seen

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_seeded_faults_hold_their_rates() -> None:
    draw = seeded_faults(3, RATES)
    faults = [draw() for _ in range(10_000)]
    shares: list[tuple[Callable[[Fault], bool], float]] = [
        (lambda fault: fault.dropped, 0.1),
        (lambda fault: fault.error is not None, 0.3),
        (lambda fault: fault.late_write is not None, 0.3),
        (lambda fault: fault.reversed_rows, 0.5),
    ]
    for chosen, rate in shares:
        assert sum(map(chosen, faults)) / len(faults) == pytest.approx(rate, abs=0.02)
    assert {fault.delay for fault in faults} == set(range(7))


def test_a_transport_that_is_closed_is_gone_for_its_readers() -> None:
    pair = Pair()
    handle = pair.read_all()
    pair.source.close()
    pair.progress()
    assert_failed(handle, TransportErrorKind.PEER_LOST)
