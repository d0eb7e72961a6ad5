"""NIXL without kvweave: the raw read, which is NIXL's limit on one core, and the read as vLLM's NixlConnector does it.

The raw reader has no progress thread and posts one list of rows. The incumbent's way (vLLM 0.32,
``NixlBaseConnectorWorker`` and ``NixlPullConnectorWorker._read_blocks``): agents with a progress thread and four UCX
threads (its default; without them it is measured too), a prepared list of every block of every layer on either side,
made once per peer, and per request the ids of the wanted blocks, layer by layer in the order of the block table, handed
to ``make_prepped_xfer``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

import kvweave.transport.nixl  # noqa: F401 - tells NIXL and UCX where to log before they are loaded
from kvweave.benchmarks.memory import EngineMemory
from kvweave.errors import TransportError, TransportErrorKind

INCUMBENT_THREADS = 4
"""NixlConnector's default of its setting ``num_threads``."""
_WAIT_SECONDS = 20.0
_CHECK_SECONDS = 0.0001

Rows = npt.NDArray[np.uint64]


class Kind(StrEnum):
    """How an agent is configured."""

    RAW = "raw"
    INCUMBENT = "incumbent"
    SINGLE = "incumbent without UCX threads"


class RawAgent:
    """A plain NIXL agent over an engine's memory."""

    def __init__(self, name: str, kind: Kind, memory: EngineMemory) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        config = nixl_agent_config(
            enable_prog_thread=kind is not Kind.RAW,
            capture_telemetry=kind is not Kind.RAW,
            num_threads=INCUMBENT_THREADS if kind is Kind.INCUMBENT else 0,
        )
        self.agent: Any = nixl_agent(name, config)
        regions = memory.layout.ranks[0].regions
        rows = np.array([(region.address, region.nbytes, 0) for region in regions], np.uint64)
        self._registered = self.agent.register_memory(rows, "DRAM")

    def metadata(self) -> bytes:
        """What a reader needs."""
        found: bytes = self.agent.get_agent_metadata()
        return found

    def progress(self) -> None:
        """Lets connections be set up."""
        self.agent.get_new_notifs()

    def close(self) -> None:
        """Ends the agent, and with it its threads: NIXL keeps them until nothing that it made is left."""
        self.agent.deregister_memory(self._registered)
        del self._registered, self.agent
        gc.collect()


@dataclass(frozen=True, slots=True)
class RawSource:
    """What a reader must know of a source agent."""

    name: str
    metadata: bytes
    addresses: tuple[int, ...]
    num_blocks: int


class _Reader(RawAgent):
    """A reader that is connected and has read once, so that nothing of that is measured."""

    def __init__(self, name: str, kind: Kind, memory: EngineMemory, source: RawSource) -> None:
        super().__init__(name, kind, memory)
        self.memory = memory
        self.source = source
        self.peer = self.agent.add_remote_agent(source.metadata).decode()

    def wait(self, handle: Any, pause: float | None = _CHECK_SECONDS) -> None:
        """Until a transfer is done; raises ``TransportError`` when it failed or takes too long.

        Without a ``pause`` (seconds) between its looks it makes progress itself.
        """
        end = time.monotonic() + _WAIT_SECONDS
        while (state := self.agent.check_xfer_state(handle)) != "DONE":
            if state == "ERR" or time.monotonic() > end:
                raise TransportError(
                    TransportErrorKind.UNAVAILABLE,
                    f"raw read from {self.source.name}: {state} after {_WAIT_SECONDS:g} s",
                )
            if pause is None:
                self.agent.get_new_notifs()
            else:
                time.sleep(pause)

    def close(self) -> None:
        """Ends the agent."""
        self.agent.remove_remote_agent(self.peer)
        super().close()


class RawReader(_Reader):
    """Reads rows in one post and makes progress itself."""

    def __init__(self, name: str, memory: EngineMemory, source: RawSource) -> None:
        super().__init__(name, Kind.RAW, memory, source)
        self.read([0], [0])

    def read(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> float:
        """Seconds from the call to the last byte. Both tables are runs of blocks: a row for each layer."""
        started = time.perf_counter()
        piece = self.memory.shape.piece_bytes
        own = [region.address for region in self.memory.layout.ranks[0].regions]
        sides = [
            self.agent.get_xfer_descs(_runs(addresses, blocks[0] * piece, len(blocks) * piece), "DRAM")
            for addresses, blocks in ((own, target_blocks), (self.source.addresses, source_blocks))
        ]
        handle = self.agent.initialize_xfer("READ", *sides, self.peer)
        self.agent.transfer(handle)
        self.wait(handle, pause=None)
        self.agent.release_xfer_handle(handle)
        return time.perf_counter() - started


class IncumbentReader(_Reader):
    """Reads as NixlConnector does: by ids in lists that were prepared for every block of both sides."""

    def __init__(self, name: str, kind: Kind, memory: EngineMemory, source: RawSource) -> None:
        super().__init__(name, kind, memory, source)
        own = [region.address for region in memory.layout.ranks[0].regions]
        blocks = memory.shape.num_blocks
        self.own_list = self._prepare("NIXL_INIT_AGENT", every_block(own, blocks, memory.shape.piece_bytes))
        theirs = every_block(source.addresses, source.num_blocks, memory.shape.piece_bytes)
        self.peer_list = self._prepare(self.peer, theirs)
        self.read([0], [0])

    def read(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> float:
        """Seconds from the call to the last byte, looked for ten times in a millisecond."""
        started = time.perf_counter()
        handle = self._make(source_blocks, target_blocks)
        self.agent.transfer(handle)
        self.wait(handle)
        self._end(handle)
        return time.perf_counter() - started

    def cost(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> float:
        """Seconds that such a read takes outside the post call, its wait not counted."""
        began = time.perf_counter()
        handle = self._make(source_blocks, target_blocks)
        made = time.perf_counter()
        self.agent.transfer(handle)
        self.wait(handle)
        over = time.perf_counter()
        self._end(handle)
        return made - began + time.perf_counter() - over

    def close(self) -> None:
        """Gives up the lists and ends the agent."""
        for prepared in (self.own_list, self.peer_list):
            self.agent.release_dlist_handle(prepared)
        del self.own_list, self.peer_list, prepared
        super().close()

    def _make(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> Any:
        layers = self.memory.shape.layers
        return self.agent.make_prepped_xfer(
            "READ", self.own_list, block_ids(target_blocks, self.memory.shape.num_blocks, layers),
            self.peer_list, block_ids(source_blocks, self.source.num_blocks, layers), notif_msg=b"request:1",
        )  # fmt: skip

    def _end(self, handle: Any) -> None:
        self.agent.check_xfer_state(handle)
        self.agent.get_xfer_telemetry(handle)
        self.agent.release_xfer_handle(handle)

    def _prepare(self, agent: str, rows: Rows) -> Any:
        return self.agent.prep_xfer_dlist(agent, self.agent.get_xfer_descs(rows, "DRAM"))


def every_block(addresses: Sequence[int], num_blocks: int, piece_bytes: int) -> Rows:
    """Address, length and device of every block of every layer: what the incumbent prepares at handshake."""
    rows = np.empty((len(addresses), num_blocks, 3), np.uint64)
    steps = np.arange(num_blocks, dtype=np.uint64) * np.uint64(piece_bytes)
    rows[:, :, 0] = np.asarray(addresses, np.uint64)[:, None] + steps
    rows[:, :, 1] = piece_bytes
    rows[:, :, 2] = 0
    return rows.reshape(-1, 3)


def block_ids(blocks: Sequence[int], num_blocks: int, layers: int) -> npt.NDArray[np.int64]:
    """Ids of the blocks in those lists, layer by layer; int64, as NixlConnector's are."""
    offsets = np.arange(layers, dtype=np.int64)[:, None] * num_blocks
    return (offsets + np.asarray(blocks, np.int32)[None, :]).ravel()


def _runs(addresses: Sequence[int], offset: int, nbytes: int) -> Rows:
    return np.array([(address + offset, nbytes, 0) for address in addresses], np.uint64)
