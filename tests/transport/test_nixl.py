from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from tests.runtime.ways import WAYS
from tests.transport.ring_world import gather_message

from kvweave.errors import ConfigurationError, TransportError, TransportErrorKind
from kvweave.testing.source_process import SourceProcess
from kvweave.testing.transport_contract import (
    GUARD,
    MEMORY_BYTES,
    TransportContract,
    TransportPair,
    assert_failed,
    expected_target,
    fresh_name,
    random_source,
    region_of,
)  # fmt: skip
from kvweave.transport.agent_data import AgentData
from kvweave.transport.base import ReadState
from kvweave.transport.choice import Choice
from kvweave.transport.piecewise import PiecewiseRead
from kvweave.transport.rates import Cost, Rates
from kvweave.transport.staged_read import StagedRead

MANY = (np.arange(12_000) * 2_000, np.arange(12_000) * 2_000, np.full(12_000, 2_000))

nixl = pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
nixl_agent = pytest.importorskip("kvweave.transport.nixl_agent", exc_type=ImportError)


@contextmanager
def one_process(staging: str = "never", same_host: bool = False) -> Iterator[TransportPair]:
    source = nixl.NixlTransport(fresh_name("source"))
    target = nixl.NixlTransport(fresh_name("target"), staging, same_host)
    source_memory, target_memory = random_source(), np.zeros(MEMORY_BYTES, np.uint8)
    source.register([region_of(source_memory)])
    target.register([region_of(target_memory)])

    def progress() -> None:
        source.progress()
        target.progress()

    yield TransportPair(target, source_memory, source_memory.ctypes.data, target_memory, source.agent_data(), progress)
    target.close()
    source.close()


class World:
    """One target here and the sources started so far."""

    def __init__(self, folder: Path, staging: str, same_host: bool) -> None:
        self.folder = folder
        self.sources: list[SourceProcess] = []
        self.target_memory = np.full(MEMORY_BYTES, GUARD, np.uint8)
        self.target = nixl.NixlTransport(fresh_name("target"), staging, same_host)
        self.target.register([region_of(self.target_memory)])

    def start(self, *names: str) -> list[tuple[SourceProcess, TransportPair]]:
        """Starts sources at the same time."""
        started = [self._start(name) for name in names]
        return [(source, self._pair(source)) for source in started]

    def _start(self, name: str) -> SourceProcess:
        file = self.folder / f"memory-{len(self.sources)}"
        file.write_bytes(random_source().tobytes())
        self.sources.append(SourceProcess(file, name))
        return self.sources[-1]

    def _pair(self, source: SourceProcess) -> TransportPair:
        address, agent_data = source.description()

        def progress() -> None:
            self.target.progress()
            os.sched_yield()

        return TransportPair(self.target, source.memory, address, self.target_memory, agent_data, progress)

    def end(self) -> None:
        self.target.close()
        for source in self.sources:
            source.end()


@contextmanager
def a_world(staging: str = "never", same_host: bool = False) -> Iterator[World]:
    with TemporaryDirectory() as folder:
        world = World(Path(folder), staging, same_host)
        try:
            yield world
        finally:
            world.end()


@contextmanager
def two_processes(staging: str = "never", same_host: bool = False) -> Iterator[TransportPair]:
    with a_world(staging, same_host) as world:
        yield world.start("source")[0][1]


@contextmanager
def two_processes_over_tcp(staging: str = "never") -> Iterator[TransportPair]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_TLS", "tcp")
        with two_processes(staging) as pair:
            yield pair


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


@pytest.fixture(params=WAYS)
def any_world(request: pytest.FixtureRequest) -> Iterator[World]:
    with a_world(**({"same_host": True} | WAYS[request.param])) as made:
        yield made


class TestContractInOneProcess(TransportContract):
    make_pair = staticmethod(one_process)


class TestContractBetweenProcesses(TransportContract):
    """Posting is the copy here, on shared memory."""

    make_pair = staticmethod(two_processes)

    def test_small_reads_move_in_one_round_also_behind_a_big_one(self, pair: TransportPair, peer: str) -> None:
        """Which moves on meanwhile, whatever small ones come."""
        big = pair.target.read(peer, pair.rows(*MANY))
        rounds = 0
        while not big.state.terminal:
            small = [pair.target.read(peer, pair.rows([place], [place], [64])) for place in range(0, 1024, 64)]
            pair.target.progress()
            rounds += 1
            assert {handle.state for handle in small} == {ReadState.DONE}
        assert 1 < rounds < 10


class TestStagedInOneProcess(TransportContract):
    make_pair = staticmethod(partial(one_process, "always"))


class TestStagedBetweenProcesses(TransportContract):
    make_pair = staticmethod(partial(two_processes, "always"))


class TestStagedOverTcp(TransportContract):
    make_pair = staticmethod(partial(two_processes_over_tcp, "always"))


class TestChosenInOneProcess(TransportContract):
    make_pair = staticmethod(partial(one_process, "auto"))


class TestCopiedInOneProcess(TransportContract):
    make_pair = staticmethod(partial(one_process, same_host=True))


class TestCopiedBetweenProcesses(TransportContract):
    make_pair = staticmethod(partial(two_processes, same_host=True))


class TestStagedByCopiesBetweenProcesses(TransportContract):
    make_pair = staticmethod(partial(two_processes, "always", same_host=True))


class TestChosenByCopiesBetweenProcesses(TransportContract):
    make_pair = staticmethod(partial(two_processes, "auto", same_host=True))


class TestContractOverTcp(TransportContract):
    """Bytes arrive later than they are posted here, as over a network; on shared memory posting is the copy."""

    make_pair = staticmethod(two_processes_over_tcp)

    def test_a_posted_piece_is_under_way_between_polls(self, pair: TransportPair, peer: str) -> None:
        handle = pair.target.read(peer, pair.rows([0], [0], [1 << 20]))
        pair.target.progress()
        assert handle.state is ReadState.IN_PROGRESS
        pair.finish(handle)
        assert handle.state is ReadState.DONE

    def test_a_cancelled_piece_still_arrives_before_the_read_is_terminal(self, pair: TransportPair, peer: str) -> None:
        handle = pair.target.read(peer, pair.rows([0], [0], [1 << 20]))
        pair.target.progress()
        pair.target.cancel(handle)
        assert handle.state is ReadState.CANCELLING
        pair.finish(handle)
        assert_failed(handle, TransportErrorKind.CANCELLED)
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, [0], [0], [1 << 20]))


A_FEW_POLLS = 1_000


def test_a_killed_source_is_lost_within_a_few_polls_and_another_is_not(any_world: World) -> None:
    (killed, lost), (_, kept) = any_world.start("killed", "kept")
    lost_peer, kept_peer = lost.connect(), kept.connect()
    killed.kill()
    reads = [any_world.target.read(lost_peer, lost.rows(*MANY)) for _ in range(3)]
    other = any_world.target.read(kept_peer, kept.rows([1], [2], [3]))
    polls = sum(any_world.target.progress() > 0 for _ in range(A_FEW_POLLS))
    assert polls < A_FEW_POLLS
    for handle in (*reads, any_world.target.read(lost_peer, lost.rows(*MANY))):
        assert_failed(handle, TransportErrorKind.PEER_LOST)
    assert other.state is ReadState.DONE


def test_a_source_killed_amid_a_read_is_lost(any_world: World) -> None:
    [(killed, lost)] = any_world.start("killed")
    handle = any_world.target.read(lost.connect(), lost.rows(*MANY))
    any_world.target.progress()
    assert not handle.state.terminal
    killed.kill()
    lost.finish(handle)
    assert_failed(handle, TransportErrorKind.PEER_LOST)


def test_a_killed_source_may_be_disconnected_and_its_data_connects_to_nobody(world: World) -> None:
    [(killed, lost)] = world.start("killed")
    peer = lost.connect()
    killed.kill()
    world.target.disconnect(peer)
    handle = world.target.connect(lost.agent_data)
    lost.finish(handle)
    assert_failed(handle, TransportErrorKind.PEER_LOST)


def test_a_new_source_takes_the_place_of_a_killed_one_of_that_name(any_world: World) -> None:
    [(first, lost)] = any_world.start("again")
    peer = lost.connect()
    first.kill()
    assert_failed(lost.read(peer, lost.rows([0], [0], [1])), TransportErrorKind.PEER_LOST)
    [(_, found)] = any_world.start("again")
    assert found.read(found.connect(), found.rows([0], [0], [1])).state is ReadState.DONE


def open_sockets() -> int:
    gc.collect()  # agents of earlier tests
    links = list(Path("/proc/self/fd").iterdir())
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


def test_sources_that_end_leave_no_open_sockets(any_world: World) -> None:
    sockets = []
    for name in ("first", "second", "third"):
        [(source, pair)] = any_world.start(name)
        peer = pair.connect()
        source.kill()
        source.end()
        assert_failed(pair.read(peer, pair.rows([0], [0], [1])), TransportErrorKind.PEER_LOST)
        sockets.append(open_sockets())
    assert sockets[0] >= sockets[1] >= sockets[2]


def test_a_stopped_source_is_not_lost(any_world: World) -> None:
    [(stopped, pair)] = any_world.start("stopped")
    peer = pair.connect()
    stopped.stop()
    handle = any_world.target.read(peer, pair.rows([1], [2], [3]))
    for _ in range(A_FEW_POLLS):
        any_world.target.progress()
    assert handle.state is not ReadState.FAILED
    stopped.resume()
    pair.finish(handle)
    assert handle.state is ReadState.DONE


def test_a_connection_waits_for_the_progress_of_the_source(world: World) -> None:
    [(stopped, pair)] = world.start("stopped")
    stopped.stop()
    connection = world.target.connect(pair.agent_data)
    for _ in range(A_FEW_POLLS):
        world.target.progress()
    assert connection.state is ReadState.IN_PROGRESS
    stopped.resume()
    pair.finish(connection)
    assert connection.state is ReadState.DONE


def test_another_probe_than_expected_rejects_the_peer_and_its_reads() -> None:
    with one_process() as pair:
        pair.target_memory[:] = GUARD
        data = dataclasses.replace(AgentData.decode(pair.agent_data), probe=b"0123456789abcdef")
        connection = pair.target.connect(data.encode())
        handle = pair.target.read(connection.peer, pair.rows([0], [0], [64]))
        pair.finish(connection, handle)
        for read in (connection, handle):
            assert_failed(read, TransportErrorKind.REJECTED)
        assert (pair.target_memory == GUARD).all()


def test_agent_data_whose_two_names_differ_is_rejected_and_connects_nobody() -> None:
    with one_process() as pair:
        data = AgentData.decode(pair.agent_data)
        with pytest.raises(TransportError) as caught:
            pair.target.connect(dataclasses.replace(data, name="somebody-else").encode())
        assert caught.value.kind is TransportErrorKind.REJECTED
        assert pair.connect() == data.name


def test_a_region_that_the_peer_described_but_did_not_register_fails_and_moves_nothing() -> None:
    with one_process() as pair:
        pair.target_memory[:] = GUARD
        unregistered = np.zeros(64, np.uint8)
        data = AgentData.decode(pair.agent_data)
        untrue = dataclasses.replace(data, regions=data.regions.with_regions([region_of(unregistered)]))
        connection = pair.target.connect(untrue.encode())
        rows = pair.rows([0], [0], [64])
        rows.source_address[:] = unregistered.ctypes.data
        handle = pair.read(connection.peer, rows)
        assert_failed(handle, TransportErrorKind.PEER_LOST)
        assert (pair.target_memory == GUARD).all()


def test_nothing_is_written_to_standard_output() -> None:
    program = "import kvweave.transport.nixl as nixl; nixl.NixlTransport('quiet').close()"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout == b""


def test_a_stopped_source_is_read_directly_in_the_end(world: World) -> None:
    """The clock goes on by a millisecond whenever it is looked at."""
    ticks = itertools.count()
    with nixl_target(world, lambda: next(ticks) / 1000) as target:
        [(stopped, pair)] = world.start("stopped")
        pair = dataclasses.replace(pair, target=target, progress=target.progress)
        peer = pair.connect()
        stopped.stop()
        handle = target.read(peer, pair.rows(*MANY))
        while handle.unasked or handle.open:  # messages that it has not taken may hold up even direct reads until then
            target.progress()
        stopped.resume()
        pair.finish(handle)
        assert handle.state is ReadState.DONE
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, *MANY))


@contextmanager
def nixl_target(world: World, clock: Callable[[], float]) -> Iterator[nixl.NixlTransport]:
    """A staging target over the world's memory, with a clock of its own."""
    target = nixl.NixlTransport(fresh_name("target"), "always", same_host=False, clock=clock)
    target.register([region_of(world.target_memory)])
    yield target
    target.close()


def test_a_source_killed_amid_staged_reads_leaves_nothing_to_be_written_later(world: World) -> None:
    with nixl_target(world, time.perf_counter) as target:
        (killed, lost), (_, kept) = world.start("killed", "kept")
        lost, kept = (dataclasses.replace(pair, target=target, progress=target.progress) for pair in (lost, kept))
        lost_peer, kept_peer = lost.connect(), kept.connect()
        handles = [target.read(lost_peer, lost.rows(*MANY)) for _ in range(12)]
        for _ in range(5):
            target.progress()
        killed.kill()
        lost.finish(*handles)
        for handle in handles[9:]:
            assert_failed(handle, TransportErrorKind.PEER_LOST)
        world.target_memory[:] = GUARD
        assert kept.read(kept_peer, kept.rows([1], [2], [3])).state is ReadState.DONE
        np.testing.assert_array_equal(world.target_memory, expected_target(kept, [1], [2], [3]))


HOSTILE = {
    "nothing": b"",
    "noise": bytes(range(256)) * 40,
    "only a head": b"kvg4" + b"\xff" * 52,
    "a million runs": b"kvg4" + bytes(8) + (10**6).to_bytes(4, "little") + b"\x01" * 40,
    "memory that is not registered": gather_message(7, 64, np.full(1, 4096, np.uint64)),
    "a megabyte": b"kvg4" + b"\x00" * (1 << 20),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_message_is_counted_and_others_are_served(message: bytes) -> None:
    with one_process("always") as pair:
        data = AgentData.decode(pair.agent_data)
        stranger = nixl_agent.NixlAgent(fresh_name("stranger"))
        stranger.add(data.name, data.payload)
        for _ in range(100):
            stranger.notify(data.name, message)
            stranger.progress()
        assert pair.read(pair.connect(), pair.rows([1], [2], [3])).state is ReadState.DONE
        stranger.close()


def test_a_process_of_another_number_is_read_over_nixl() -> None:
    with one_process(same_host=True) as pair:
        data = AgentData.decode(pair.agent_data)
        processes = {"itself": os.getpid(), "another": os.getppid(), "nobody": 2**31 - 1, "odd": 2**63}
        for name, process in processes.items():
            pair.target.disconnect(data.name)
            elsewhere = dataclasses.replace(pair, agent_data=dataclasses.replace(data, process=process).encode())
            read = elsewhere.read(elsewhere.connect(), elsewhere.rows([1], [2], [3]))
            assert read.state is ReadState.DONE
            assert bool(pair.target._agent._neighbours) == (name == "itself")


def test_reads_that_are_copied_need_nothing_of_the_peer_unless_it_should_gather_them() -> None:
    dear, cheap = Cost(1.0, 0.0, 0.0), Cost(0.001, 0.0, 0.0)
    with one_process("auto", same_host=True) as pair:
        peer, rows = pair.connect(), pair.rows(*MANY)
        pair.target._peers[peer].choice = Choice(Rates(cheap, dear, 1 << 20))
        assert not pair.target.read(peer, rows).attended
        pair.target._peers[peer].choice = Choice(Rates(dear, cheap, 1 << 20))
        unattended = pair.target.read(peer, rows, attended=False)
        assert (type(unattended), unattended.attended) == (PiecewiseRead, True)
        assert type(pair.target.read(peer, rows)) is StagedRead
    with one_process("auto") as pair:
        assert pair.target.read(pair.connect(), pair.rows([1], [2], [3])).attended


def test_a_transport_that_was_closed_is_copied_from_no_more() -> None:
    source = nixl.NixlTransport(fresh_name("source"))
    memory = random_source()
    source.register([region_of(memory)])
    target = nixl.NixlTransport(fresh_name("target"))
    target.register([region_of(target_memory := np.zeros(MEMORY_BYTES, np.uint8))])
    pair = TransportPair(
        target, memory, memory.ctypes.data, target_memory, source.agent_data(),
        lambda: (source.progress(), target.progress(), None)[-1],
    )  # fmt: skip
    peer = pair.connect()
    source.close()
    assert_failed(pair.read(peer, pair.rows([1], [2], [3])), TransportErrorKind.PEER_LOST)
    target.close()


def test_a_source_that_never_stages_is_read_directly() -> None:
    source, target = (
        nixl.NixlTransport(fresh_name("source"), "never"),
        nixl.NixlTransport(fresh_name("target"), "always"),
    )
    memory = random_source()
    source.register([region_of(memory)])
    assert AgentData.decode(source.agent_data()).ring is None
    target.register([region_of(target_memory := np.zeros(MEMORY_BYTES, np.uint8))])
    pair = TransportPair(
        target, memory, memory.ctypes.data, target_memory, source.agent_data(),
        lambda: (source.progress(), target.progress(), None)[-1],
    )  # fmt: skip
    assert pair.read(pair.connect(), pair.rows([1], [2], [3])).state is ReadState.DONE
    target.close()
    source.close()


def test_an_unknown_way_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match="auto, never, always"):
        nixl.NixlTransport(fresh_name("target"), "sometimes")


def test_a_source_whose_staged_reads_come_late_is_read_directly() -> None:
    """24 MB are expected within 2 ms, which no memory keeps; reading directly is said to take 4."""
    direct, staged = Cost(0.004, 0.0, 0.0), Cost(0.0005, 0.0, 0.0)
    with one_process("auto") as pair:
        peer = pair.connect()
        pair.target._peers[peer].choice = Choice(Rates(direct, staged, 1 << 20))
        ways = [type(pair.read(peer, pair.rows(*MANY))) for _ in range(6)]
    assert ways[0] is StagedRead
    assert PiecewiseRead in ways
