"""The handshake with an engine of 64 ranks: what it costs outside NIXL's own calls, and how much memory it takes.

The peer is made up: one transport of this machine describes itself, and 64 ranks with names of their own have its agent
data. NIXL's calls are answered at once by a recording, so what is left is ours: message, description, compatibility,
plan, agent data, probes. Beside it stands what the incumbent prepares for every block of one rank.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.memory import CacheShape
from kvweave.benchmarks.playback import PlaybackAgent, Recording
from kvweave.benchmarks.raw_nixl import every_block
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.benchmarks.stopwatch import replace_agent
from kvweave.core.layout import EngineLayout, Region
from kvweave.core.parallel import ParallelConfig
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import ConnectPeer, PeerReady, Send
from kvweave.protocol.messages import EngineRole
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.protocol.timing import Timing
from kvweave.runtime.clock import boot_time
from kvweave.runtime.events import Connected
from kvweave.runtime.workers import DecodeWorker

PIECE_BYTES = 4 << 10
FEW_BLOCKS = 1_000
TIME_LIMIT = Limit(Bound.AT_MOST, 100)
MEMORY_LIMIT = Limit(Bound.AT_MOST, 1.05)
_ADDRESS = "127.0.0.1:1"
_FIRST_ADDRESS = 2**44
_LEASE_SECONDS = 30.0


def handshake(effort: Effort) -> Iterator[Line]:
    """Time with many blocks, and memory with few and with many."""
    many, few = (_Play(effort.ranks, blocks) for blocks in (effort.many_blocks, FEW_BLOCKS))
    seconds = [many.seconds() for _ in range(effort.rounds)]
    lists = [_incumbent_lists(effort.many_blocks) for _ in range(2)]
    ours = Value.milliseconds("kvweave, all ranks", seconds)
    title = f"handshake, {effort.ranks} ranks, 61 layers, {effort.many_blocks:,} blocks"
    yield Line(
        "handshake.time", title,
        (ours, Value.milliseconds("NixlConnector's lists, one rank", [taken for taken, _ in lists])),
        "ms outside NIXL's calls", ours.value, TIME_LIMIT,
    )  # fmt: skip
    grown = {play.num_blocks: play.nbytes() for play in (few, many)}
    yield Line(
        "handshake.memory", "  its memory",
        (
            Value.of(f"{FEW_BLOCKS:,} blocks", "MB", [grown[FEW_BLOCKS] / 1e6]),
            Value.of(f"{effort.many_blocks:,} blocks", "MB", [grown[effort.many_blocks] / 1e6]),
            Value.of("NixlConnector's lists, one rank", "MB", [nbytes / 1e6 for _, nbytes in lists]),
        ),
        "with many blocks by that with few", grown[effort.many_blocks] / grown[FEW_BLOCKS], MEMORY_LIMIT,
    )  # fmt: skip


def _incumbent_lists(num_blocks: int) -> tuple[float, int]:
    """Seconds and bytes of one rank's rows, before NIXL gets them."""
    started = time.perf_counter()
    addresses = [_FIRST_ADDRESS + layer * num_blocks * PIECE_BYTES for layer in range(61)]
    rows = every_block(addresses, num_blocks, PIECE_BYTES)
    return time.perf_counter() - started, rows.nbytes


class _Play:
    """A peer of so many ranks that can be shaken hands with again and again."""

    def __init__(self, ranks: int, num_blocks: int) -> None:
        shape = CacheShape(PIECE_BYTES, num_blocks)
        self.num_blocks = num_blocks
        self._layout = _addressed(shape.layout())
        prefill = _addressed(shape.layout(ParallelConfig(tp=ranks)))
        recorded = Recording.make(prefill)
        self._recording = recorded
        self._prefill = PrefillSide("bench-prefill", prefill, recorded.agents, _LEASE_SECONDS)

    def seconds(self) -> float:
        """From the answer's bytes to the peer that is ready."""
        side, transport = DecodeSide("bench-decode", self._layout, Timing()), self._transport()
        worker = DecodeWorker(0, self._layout, transport, boot_time)
        answer = self._answer(side)
        started = time.perf_counter()
        _shake(side, worker, answer)
        taken = time.perf_counter() - started
        worker.close()
        return taken

    def nbytes(self) -> int:
        """Bytes that the decode side holds afterwards."""
        side, transport = DecodeSide("bench-decode", self._layout, Timing()), self._transport()
        worker = DecodeWorker(0, self._layout, transport, boot_time)
        answer = self._answer(side)
        gc.collect()
        tracemalloc.start()
        _shake(side, worker, answer)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        worker.close()
        return held

    def _answer(self, side: DecodeSide) -> bytes:
        """The prefill side's answer to the handshake that ``side`` begins."""
        (asked,) = (effect for effect in side.name_peer(boot_time(), _ADDRESS) if isinstance(effect, Send))
        request = decode(encode(asked.message), EngineRole.DECODE)
        effects = self._prefill.receive(boot_time(), "connection", request)
        (reply,) = (effect for effect in effects if isinstance(effect, Send))
        return encode(reply.message)

    def _transport(self) -> Any:
        from kvweave.transport.nixl import NixlTransport

        transport: Any = NixlTransport("bench handshake")
        replace_agent(transport, lambda _: PlaybackAgent(self._recording))
        return transport


def _shake(side: DecodeSide, worker: DecodeWorker, answer: bytes) -> None:
    (connect,) = (
        effect for effect in side.receive(boot_time(), _ADDRESS, decode(answer)) if isinstance(effect, ConnectPeer)
    )
    worker.submit(connect)
    while True:
        for event in worker.poll():
            if not isinstance(event, Connected):
                raise RuntimeError(f"the measured handshake: {event}")
            effects = side.connected(boot_time(), event.address, event.attempt, event.rank)
            if any(isinstance(effect, PeerReady) for effect in effects):
                return


def _addressed(layout: EngineLayout) -> EngineLayout:
    """Made-up addresses, one region after another: nothing is ever read there."""
    for number, rank in enumerate(layout.ranks):
        address, regions = _FIRST_ADDRESS * (number + 1), []
        for region in rank.regions:
            regions.append(Region(address, region.nbytes))
            address += region.nbytes
        layout = layout.relocated(rank.coordinates, regions)
    return layout
