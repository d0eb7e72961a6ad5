"""The side that is read, in an operating system process of its own: prefill engines and plain NIXL agents over them.

It answers one question at a time over a pipe and ends with the process that started it. Both ends are this program.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from kvweave.benchmarks.memory import GROUP, CacheShape, EngineMemory
from kvweave.benchmarks.ways import USUAL, Way, transport_factory
from kvweave.core.layout import EngineLayout
from kvweave.errors import KVWeaveError
from kvweave.runtime.closing import Closing

_ANSWER_SECONDS = 120.0
_END_SECONDS = 20.0
_PROGRESS_SECONDS = 0.001
_LEASE_SECONDS = 120.0


class SourceProcessError(KVWeaveError):
    """The source process has ended, or said nothing for too long."""


@dataclass(frozen=True, slots=True)
class _Question:
    name: str
    arguments: tuple[Any, ...]


class Source(Closing):
    """The process; ``close`` or the end of its context ends it.

    Every question raises ``SourceProcessError`` when the process cannot answer it.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="kvweave bench source", daemon=True)
        self._process.start()
        theirs.close()

    def allocate(self, shape: CacheShape) -> None:
        """Labelled memory of that shape, instead of what was there; ends what stood over it."""
        self._ask("allocate", shape)

    def open_engine(self, way: Way) -> str:
        """A prefill engine over the memory; its address."""
        return str(self._ask("open_engine", way))

    def offer(self, address: str, request_id: str, blocks: Sequence[int]) -> dict[str, Any]:
        """Offers blocks from the engine at that address; the reference's parameters."""
        found: dict[str, Any] = self._ask("offer", address, request_id, list(blocks))
        return found

    def open_rank(self) -> tuple[EngineLayout, bytes]:
        """A prefill rank over the memory without an engine: the layout, and its agent data."""
        found: tuple[EngineLayout, bytes] = self._ask("open_rank")
        return found

    def open_agent(self, kind: Any, name: str) -> Any:
        """A plain NIXL agent over the memory: its ``RawSource``. Agents make progress until ``close_agent``."""
        return self._ask("open_agent", kind, name)

    def close_agent(self, name: str) -> None:
        """Ends that agent."""
        self._ask("close_agent", name)

    def close(self) -> None:
        """Ends the process, by force when it does not end by itself."""
        self._channel.close()
        self._process.join(_END_SECONDS)
        self._process.kill()
        self._process.join()

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            self._channel.send(_Question(name, arguments))
            if not self._channel.poll(_ANSWER_SECONDS):
                raise SourceProcessError(f"source process: no answer to {name} in {_ANSWER_SECONDS:g} s")
            answer = self._channel.recv()
        except (EOFError, OSError):
            raise SourceProcessError(f"source process: it has ended, asked to {name}") from None
        if isinstance(answer, KVWeaveError):
            raise SourceProcessError(f"source process: {answer}")
        return answer


class _Host:
    """Lives in the process: one memory, engines and agents over it."""

    def __init__(self) -> None:
        self._memory: EngineMemory | None = None
        self._engines: dict[str, Any] = {}
        self._agents: dict[str, Any] = {}
        self._ranks: list[Any] = []

    def allocate(self, shape: CacheShape) -> None:
        self.close()
        self._memory = EngineMemory(shape)
        self._memory.label()

    def open_engine(self, way: Way) -> str:
        from kvweave.runtime import PrefillEngine

        engine = PrefillEngine(self._required().layout, transport=transport_factory(way))
        self._engines[engine.address] = engine
        return str(engine.address)

    def offer(self, address: str, request_id: str, blocks: list[int]) -> dict[str, Any]:
        tokens = self._required().shape.tokens(len(blocks))
        offered = self._engines[address].offer(request_id, tokens, {GROUP: blocks}, lease_seconds=_LEASE_SECONDS)
        found: dict[str, Any] = offered.params()
        return found

    def open_rank(self) -> tuple[EngineLayout, bytes]:
        from kvweave.runtime.workers import PrefillWorker

        layout = self._required().layout
        name = f"bench source {len(self._ranks)} of {os.getpid()}"
        rank = PrefillWorker(layout.ranks[0], transport_factory(USUAL)(name))
        self._ranks.append(rank)
        return layout, rank.agent_data

    def open_agent(self, kind: Any, name: str) -> Any:
        from kvweave.benchmarks.raw_nixl import RawAgent, RawSource

        memory = self._required()
        agent = self._agents[name] = RawAgent(name, kind, memory)
        addresses = tuple(region.address for region in memory.layout.ranks[0].regions)
        return RawSource(name, agent.metadata(), addresses, memory.shape.num_blocks)

    def close_agent(self, name: str) -> None:
        self._agents.pop(name).close()

    def progress(self) -> bool:
        """Lets readers connect to the plain agents; whether there are any."""
        for agent in self._agents.values():
            agent.progress()
        for rank in self._ranks:
            rank.poll()
        return bool(self._agents or self._ranks)

    def close(self) -> None:
        for name in tuple(self._agents):
            self.close_agent(name)
        for opened in (*self._engines.values(), *self._ranks):
            opened.close()
        self._engines.clear()
        self._ranks.clear()
        self._memory = None

    def _required(self) -> EngineMemory:
        if self._memory is None:
            raise SourceProcessError("source process: no memory was allocated yet")
        return self._memory


def _serve(channel: Connection) -> None:
    """Answers until the other end is closed. An interrupt from the keyboard is the asker's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = _Host()
    with suppress(EOFError, OSError):
        while True:
            if channel.poll(_PROGRESS_SECONDS if host.progress() else None):
                channel.send(_answer(host, channel.recv()))
    host.close()


def _answer(host: _Host, question: _Question) -> Any:
    try:
        return getattr(host, question.name)(*question.arguments)
    except KVWeaveError as error:
        return error
