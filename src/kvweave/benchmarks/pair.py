"""A source process and an engine here that fetches from it: what every measurement over NIXL stands on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvweave.benchmarks.memory import GROUP, CacheShape, EngineMemory
from kvweave.benchmarks.raw_nixl import IncumbentReader, Kind, RawReader, RawSource
from kvweave.benchmarks.source import Source
from kvweave.benchmarks.ways import USUAL, Way, transport_factory
from kvweave.errors import TransportError, TransportErrorKind
from kvweave.runtime import DecodeEngine, Delivered

_READY_SECONDS = 60.0
_numbers = itertools.count(1)


class Pair:
    """Memory of one shape on both sides, and engines or plain agents over it, opened as they are measured."""

    def __init__(self, source: Source, shape: CacheShape) -> None:
        self.shape = shape
        self.source = source
        source.allocate(shape)
        self.memory = EngineMemory(shape)

    @contextmanager
    def engine(self, way: Way = USUAL, address: str | None = None) -> Iterator[Fetcher]:
        """A decode engine that names its prefill engine as a peer and is connected to it."""
        address = address or self.source.open_engine(way)
        with DecodeEngine(self.memory.layout, transport=transport_factory(way), peers=[address]) as engine:
            engine.connect(address).result(_READY_SECONDS)
            yield Fetcher(self, engine, address)

    @contextmanager
    def raw(self) -> Iterator[RawReader]:
        """A plain NIXL reader without a progress thread; it costs nothing while it is not used."""
        with self._agent(Kind.RAW) as source:
            reader = RawReader(f"{source.name} reader", self.memory, source)
            yield reader
            reader.close()

    @contextmanager
    def incumbent(self, kind: Kind = Kind.INCUMBENT) -> Iterator[IncumbentReader]:
        """A reader as NixlConnector's; its progress threads run on both sides while it is open."""
        with self._agent(kind) as source:
            reader = IncumbentReader(f"{source.name} reader", kind, self.memory, source)
            yield reader
            reader.close()

    def require_delivered(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> None:
        """Raises ``TransportError`` when a byte is not where it belongs; then makes the target blank again."""
        wrong = self.memory.wrong_blocks(source_blocks, target_blocks)
        if wrong:
            raise TransportError(TransportErrorKind.REJECTED, f"{wrong} pieces have wrong bytes; nothing was measured")
        self.memory.clear()

    @contextmanager
    def _agent(self, kind: Kind) -> Iterator[RawSource]:
        name = f"{kind} {next(_numbers)}"
        try:
            yield self.source.open_agent(kind, name)
        finally:
            self.source.close_agent(name)


class Fetcher:
    """Fetches blocks through kvweave, one request after another."""

    def __init__(self, pair: Pair, engine: DecodeEngine, address: str) -> None:
        self._pair = pair
        self.engine = engine
        self._address = address

    def offer(self, source_blocks: Sequence[int]) -> dict[str, object]:
        """A reference to blocks of the source."""
        return self._pair.source.offer(self._address, f"request {next(_numbers)}", source_blocks)

    def read(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> float:
        """Seconds from the call of ``fetch``, with the reference in hand, to the delivery."""
        reference = self.offer(source_blocks)
        started = time.perf_counter()
        self.engine.fetch(reference, {GROUP: target_blocks}).result(_READY_SECONDS)
        return time.perf_counter() - started

    def fetch(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> Delivered:
        """The same, for what it says about its stages."""
        return self.engine.fetch(self.offer(source_blocks), {GROUP: target_blocks}).result(_READY_SECONDS)
