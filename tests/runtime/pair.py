"""Two engines in one process over the memory transport, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

import kvweave as kw
from kvweave.core.model import ModelCache
from kvweave.protocol.timing import Timing
from kvweave.runtime import DecodeEngine, OfferReference, PrefillEngine, Released
from kvweave.runtime.keys import CurveKeys
from kvweave.runtime.naming import TransportFactory
from kvweave.runtime.tracing import Tracer
from kvweave.transport.faults import FaultSource, no_faults
from kvweave.transport.memory import MemoryNetwork, MemoryTransport
from tests.runtime.memory import ATTENTION, EngineMemory, contents

SOURCE_BLOCKS = {"full": [9, 3, 12, 0, 7]}
TARGET_BLOCKS = {"full": [1, 5, 0, 2]}
PATIENCE = 20.0
"""Seconds after which a test that waits has failed; nothing here takes that long."""


class VirtualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Pair:
    """A prefill engine of tp 4 in blocks of 8, and a decode engine of tp 2 in blocks of 12."""

    model: ModelCache = ATTENTION
    prefill_sizes: kw.ParallelConfig = field(default_factory=lambda: kw.ParallelConfig(tp=4))
    decode_sizes: kw.ParallelConfig = field(default_factory=lambda: kw.ParallelConfig(tp=2))
    faults: FaultSource = no_faults
    lease_seconds: float = 30.0
    timing: Timing = field(default_factory=Timing)
    decode_model: ModelCache | None = None
    keys: tuple[CurveKeys | None, CurveKeys | None] = (None, None)
    transport: TransportFactory | None = None
    tracer: Tracer | None = None
    checksums: bool = False
    decode_bind: str | None = None

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork()
        self.transports: list[MemoryTransport] = []
        self.released: SimpleQueue[Released] = SimpleQueue()
        small = kw.CacheConfig(block_size=8, num_blocks=16)
        large = kw.CacheConfig(block_size=12, num_blocks=16, layout="NHD")
        self.source = EngineMemory(kw.EngineLayout.build(self.model, self.prefill_sizes, small))
        self.target = EngineMemory(kw.EngineLayout.build(self.decode_model or self.model, self.decode_sizes, large))
        self.whole = contents(self.model, 1)
        self.source.write(self.whole, SOURCE_BLOCKS)
        self.prefill = PrefillEngine(
            self.source.layout, transport=self.transport or self._join, lease_seconds=self.lease_seconds,
            clock=self.clock, keys=self.keys[0], tracer=self.tracer, checksums=self.checksums,
        )  # fmt: skip
        self.decode = DecodeEngine(
            self.target.layout,
            transport=self.transport or self._join_faulty,
            timing=self.timing,
            clock=self.clock,
            keys=self.keys[1],
            bind=self.decode_bind,
            tracer=self.tracer,
            checksums=self.checksums,
        )

    def offer(self, request_id: str = "request", num_tokens: int = 40) -> OfferReference:
        made = self.prefill.offer(request_id, num_tokens, SOURCE_BLOCKS, self.released.put)
        assert made is not None
        return made

    def wrong_bytes(self) -> int:
        return self.target.wrong_bytes(self.whole, TARGET_BLOCKS)

    def kill_prefill(self) -> None:
        """Its memory is gone and its control channel silent, as after a kill."""
        for transport in self.transports:
            self.network.kill(transport)
        self.prefill.close()

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()

    def _join(self, name: str) -> MemoryTransport:
        self.transports.append(self.network.join(name))
        return self.transports[-1]

    def _join_faulty(self, name: str) -> MemoryTransport:
        return self.network.join(name, self.faults)


@contextmanager
def joined(**changes: object) -> Iterator[Pair]:
    pair = Pair(**changes)
    try:
        yield pair
    finally:
        pair.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does; fails when it never does."""
    import time

    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "this never happened"
        time.sleep(0)
