"""Two operating system processes over NIXL: unequal shapes, real bytes, and a prefill engine that dies and returns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvweave as kw
from kvweave.errors import KVWeaveError
from kvweave.protocol.timing import Timing
from kvweave.runtime import DecodeEngine
from tests.runtime.memory import ATTENTION, EngineMemory, contents
from tests.runtime.pair import PATIENCE
from tests.runtime.ways import WAYS, nixl_by

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)

ROOT = Path(__file__).parents[2]
BLOCKS = {"full": [1, 5, 0, 2]}
TIMING = Timing(answer_seconds=2, handshake_seconds=10, retry_seconds=1)


class Prefill:
    """The other process, by its input and output."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.runtime.prefill_process"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = ""

    def bind(self, address: str = "127.0.0.1:0") -> None:
        self.say(address)
        self.address = str(self.next("address")["address"])

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def next(self, field: str) -> dict[str, object]:
        """The next line that has this field."""
        for line in self.process.stdout:
            record = json.loads(line)
            if field in record:
                return record
        raise AssertionError(f"the prefill process ended before it said {field}")

    def offer(self, request_id: str, num_tokens: int = 40) -> dict[str, object]:
        self.say(f"{request_id} {num_tokens}")
        return self.next("params")["params"]

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self.process.communicate(timeout=PATIENCE)


@contextmanager
def decode_engine(
    parallel: kw.ParallelConfig, *peers: str, way: str = "copied"
) -> Iterator[tuple[DecodeEngine, EngineMemory]]:
    cache = kw.CacheConfig(block_size=12, num_blocks=16, layout="NHD")
    memory = EngineMemory(kw.EngineLayout.build(ATTENTION, parallel, cache))
    with DecodeEngine(memory.layout, transport=nixl_by(way), peers=peers, timing=TIMING) as engine:
        yield engine, memory


@pytest.fixture(scope="module")
def prefill() -> Iterator[Prefill]:
    process = Prefill()
    process.bind()
    yield process
    process.close()
    assert process.process.returncode == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tp", [1, 2, 8], ids="tp 4 to {}".format)
def test_processes_of_unequal_shape_move_the_right_bytes(prefill: Prefill, tp: int, way: str) -> None:
    with decode_engine(kw.ParallelConfig(tp=tp), prefill.address, way=way) as (engine, memory):
        for number in range(3):
            request = f"tp{tp}-{way}-{number}"
            delivered = engine.fetch(prefill.offer(request), BLOCKS).result(PATIENCE)
            released = prefill.next("released")
            assert (released["released"], released["reason"]) == (request, "acknowledged")
        assert memory.wrong_bytes(contents(ATTENTION, 1), BLOCKS) == 0
        assert delivered.nbytes == 40 * max(4, tp) * 8 * 2 * 2 * 2


def test_second_claim_is_refused_across_processes(prefill: Prefill) -> None:
    with decode_engine(kw.ParallelConfig(tp=2)) as (engine, _):
        params = prefill.offer("twice")
        engine.fetch(params, BLOCKS).result(PATIENCE)
        with pytest.raises(KVWeaveError, match="released"):
            engine.fetch(params, BLOCKS).result(PATIENCE)


@pytest.mark.parametrize("way", WAYS)
def test_killed_prefill_engine_fails_its_request_and_its_successor_serves_the_next(way: str) -> None:
    first, second = Prefill(), Prefill()
    first.bind()
    with decode_engine(kw.ParallelConfig(tp=2), first.address, way=way) as (engine, memory):
        engine.fetch(first.offer("before"), BLOCKS).result(PATIENCE)
        lost = first.offer("lost")
        first.kill()
        with pytest.raises(KVWeaveError):
            engine.fetch(lost, BLOCKS).result(PATIENCE)
        second.bind(first.address)
        try:
            delivered = engine.fetch(second.offer("after"), BLOCKS).result(PATIENCE)
            assert delivered.nbytes == 40 * 4 * 8 * 2 * 2 * 2
            assert memory.wrong_bytes(contents(ATTENTION, 1), BLOCKS) == 0
        finally:
            second.close()
