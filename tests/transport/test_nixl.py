from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.testing.transport_contract import (
    GUARD,
    MEMORY_BYTES,
    TransportContract,
    TransportPair,
    assert_failed,
    fresh_name,
    random_source,
    region_of,
)  # fmt: skip
from kvweave.transport.agent_data import AgentData
from kvweave.transport.base import ReadState

nixl = pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
SOURCE_PROGRAM = Path(__file__).parent / "nixl_source.py"


@contextmanager
def one_process() -> Iterator[TransportPair]:
    source, target = nixl.NixlTransport(fresh_name("source")), nixl.NixlTransport(fresh_name("target"))
    source_memory, target_memory = random_source(), np.zeros(MEMORY_BYTES, np.uint8)
    source.register([region_of(source_memory)])
    target.register([region_of(target_memory)])

    def progress() -> None:
        source.progress()
        target.progress()

    yield TransportPair(target, source_memory, source_memory.ctypes.data, target_memory, source.agent_data(), progress)
    target.close()
    source.close()


class SourceProcess:
    """A source in a process of its own, with a view of its memory here."""

    def __init__(self, folder: str, name: str) -> None:
        file = Path(folder) / name
        file.write_bytes(random_source().tobytes())
        self.memory = np.memmap(file, np.uint8, mode="r")
        self.process = subprocess.Popen(
            [sys.executable, str(SOURCE_PROGRAM), name, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout
        address, agent_data = self.process.stdout.readline().split()
        self.address, self.agent_data = int(address), bytes.fromhex(agent_data.decode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.communicate(b"end\n") if self.process.poll() is None else self.process.communicate()


@contextmanager
def source_process(name: str = "source") -> Iterator[SourceProcess]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        source = SourceProcess(folder, fresh_name(name))
        yield source
        source.end()


def pair_with(source: SourceProcess, target: nixl.NixlTransport, target_memory: np.ndarray) -> TransportPair:
    def progress() -> None:
        target.progress()
        os.sched_yield()

    return TransportPair(target, source.memory, source.address, target_memory, source.agent_data, progress)


@contextmanager
def two_processes() -> Iterator[TransportPair]:
    target, target_memory = nixl.NixlTransport(fresh_name("target")), np.full(MEMORY_BYTES, GUARD, np.uint8)
    target.register([region_of(target_memory)])
    with source_process() as source:
        yield pair_with(source, target, target_memory)
        target.close()


class TestContractInOneProcess(TransportContract):
    make_pair = staticmethod(one_process)


class TestContractBetweenProcesses(TransportContract):
    make_pair = staticmethod(two_processes)


@contextmanager
def two_sources() -> Iterator[tuple[nixl.NixlTransport, list[SourceProcess], list[TransportPair]]]:
    target, target_memory = nixl.NixlTransport(fresh_name("target")), np.full(MEMORY_BYTES, GUARD, np.uint8)
    target.register([region_of(target_memory)])
    with source_process("one") as one, source_process("other") as other:
        yield target, [one, other], [pair_with(source, target, target_memory) for source in (one, other)]
        target.close()


MANY = (np.arange(6_000) * 4_000, np.arange(6_000) * 4_000, np.full(6_000, 4_000))


def test_a_killed_source_is_lost_and_another_is_not() -> None:
    with two_sources() as (target, (killed, _), (lost, kept)):
        lost_peer, kept_peer = lost.connect(), kept.connect()
        killed.kill()
        reads = [target.read(lost_peer, lost.rows(*MANY)) for _ in range(3)]
        other = target.read(kept_peer, kept.rows([1], [2], [3]))
        lost.finish(other, *reads)
        for handle in (*reads, target.read(lost_peer, lost.rows(*MANY))):
            assert_failed(handle, TransportErrorKind.PEER_LOST)
        assert other.state is ReadState.DONE
        assert target.progress() == 0


def test_a_source_killed_amid_a_read_is_lost() -> None:
    with two_sources() as (target, (killed, _), (lost, _)):
        peer = lost.connect()
        handle = target.read(peer, lost.rows(*MANY))
        target.progress()
        assert not handle.state.terminal
        killed.kill()
        lost.finish(handle)
        assert_failed(handle, TransportErrorKind.PEER_LOST)


def test_a_killed_source_may_be_disconnected_without_a_read() -> None:
    with two_sources() as (target, (killed, _), (lost, kept)):
        peer = lost.connect()
        killed.kill()
        target.disconnect(peer)
        assert kept.read(kept.connect(), kept.rows([1], [2], [3])).state is ReadState.DONE


def test_connecting_to_a_killed_source_fails() -> None:
    with two_sources() as (target, (killed, _), (lost, _)):
        killed.kill()
        handle = target.connect(lost.agent_data)
        lost.finish(handle)
        assert_failed(handle, TransportErrorKind.PEER_LOST)


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


def test_rows_that_the_peer_described_but_did_not_register_fail() -> None:
    with one_process() as pair:
        data = AgentData.decode(pair.agent_data)
        untrue = np.zeros(64, np.uint8)
        lying = dataclasses.replace(data, regions=data.regions.with_regions([region_of(untrue)]))
        connection = pair.target.connect(lying.encode())
        offset = untrue.ctypes.data - pair.source_address
        handle = pair.target.read(connection.peer, pair.rows([0], [0], [64]))
        rows = pair.rows([0], [0], [64])
        rows.source_address[:] = np.uint64(pair.source_address + offset)
        bad = pair.target.read(connection.peer, rows)
        pair.finish(connection, handle, bad)
        assert handle.state is ReadState.DONE
        assert bad.state is ReadState.FAILED


def test_a_new_source_takes_the_place_of_a_killed_one_of_that_name() -> None:
    target, target_memory = nixl.NixlTransport(fresh_name("target")), np.full(MEMORY_BYTES, GUARD, np.uint8)
    target.register([region_of(target_memory)])
    with TemporaryDirectory() as folder:
        first = SourceProcess(folder, "again")
        pair = pair_with(first, target, target_memory)
        peer = pair.connect()
        first.kill()
        first.end()
        assert_failed(pair.read(peer, pair.rows([0], [0], [1])), TransportErrorKind.PEER_LOST)
        second = SourceProcess(folder, "again")
        pair = pair_with(second, target, target_memory)
        assert pair.read(pair.connect(), pair.rows([0], [0], [1])).state is ReadState.DONE
        target.close()
        second.end()


def test_nothing_is_written_to_standard_output() -> None:
    program = "import kvweave.transport.nixl as nixl; nixl.NixlTransport('quiet').close()"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout == b""
