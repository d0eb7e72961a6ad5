"""The workers: one per rank, each with a transport of its own. They move bytes and decide nothing.

A prefill worker registers its memory and makes progress so that peers can read it. A decode worker plans once per peer
for its own rank, computes a request's rows (while its claim is under way), posts its reads, and reports. Both are
driven by the polling thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvweave.core.descriptors import RequestDescriptors, Rows
from kvweave.core.layout import EngineLayout, RankLayout
from kvweave.core.padding import padded, padding_tokens
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.errors import BlockTableError, IncompatibleLayouts, KVWeaveError, TransportError, TransportErrorKind
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads
from kvweave.runtime.clock import Clock
from kvweave.runtime.events import (
    Connected,
    NotConnected,
    PrepareReads,
    ReadFailed,
    ReadsEnded,
    ReadStatistics,
    WorkerCommand,
    WorkerEvent,
)
from kvweave.transport.base import ReadHandle, ReadState, Transport
from kvweave.transport.rows import ReadRows

_MOST_ALLOWED = 4096
"""Fetches that may be allowed before their reads come; some never come."""
_MOST_PREPARED = 64
"""Fetches whose rows may be kept before their reads come; those of a refused claim never come."""


class PrefillWorker:
    """One prefill rank: its memory is registered from the beginning."""

    def __init__(self, layout: RankLayout, transport: Transport) -> None:
        self._transport = transport
        transport.register(layout.regions)
        self.agent_data = transport.agent_data()

    def poll(self) -> None:
        """Lets peers' reads move on."""
        self._transport.progress()

    def attend(self, busy: bool) -> None:
        """See ``PrefillLink``; whoever polls here knows it."""

    def sockets(self) -> Sequence[Any]:
        """See ``PrefillLink``."""
        return ()

    def close(self) -> None:
        """Ends the transport; nothing of this rank can be read any more."""
        self._transport.close()


@dataclass(frozen=True, slots=True)
class _Memories:
    """Which kind of memory each region of a rank is, numbered."""

    kinds: tuple[tuple[str, int], ...]
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class _Peer:
    attempt: int
    plan: TransferPlan
    padding: int
    agents: dict[RankCoordinates, str]
    connecting: list[ReadHandle]
    memories: dict[RankCoordinates, _Memories]


@dataclass(slots=True)
class _Reads:
    started_at: float
    handles: list[ReadHandle] = field(default_factory=list)
    statistics: ReadStatistics = field(default_factory=ReadStatistics)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A fetch's rows, cut up by where they come from; true as long as ``peer`` is connected."""

    reads: PostReads
    peer: _Peer
    descriptors: RequestDescriptors
    parts: tuple[tuple[str, ReadRows], ...]


class DecodeWorker:
    """One decode rank, number ``rank`` of its engine. One thread calls it.

    ``registered`` says that its memory is registered with the transport already.
    """

    def __init__(
        self, rank: int, layout: EngineLayout, transport: Transport, clock: Clock, registered: bool = False
    ) -> None:
        self._rank = rank
        self._layout = layout
        self._own = layout.ranks[rank]
        self._memories = _memories(self._own)
        self._transport = transport
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._reads: dict[int, _Reads] = {}
        self._fenced: dict[int, PostReads] = {}
        self._allowed: dict[int, None] = {}
        self._prepared: dict[int, _Prepared] = {}
        self._events: list[WorkerEvent] = []
        if not registered:
            transport.register(self._own.regions)

    @property
    def busy(self) -> bool:
        """Whether reads or connections are open, so that bytes move only in ``poll``."""
        return bool(self._reads) or any(peer.connecting for peer in self._peers.values())

    def submit(self, command: WorkerCommand) -> None:
        """Carries one command out, or begins to."""
        match command:
            case ConnectPeer():
                self._connect(command)
            case DropPeer():
                self._drop(command.address)
            case PrepareReads(reads):
                self._prepare(reads)
            case PostReads(fetch=fetch, fenced=True) if fetch not in self._allowed:
                self._fenced[fetch] = command
            case PostReads():
                self._post(command)
            case CancelReads(fetch):
                self._cancel(fetch)

    def allow(self, fetch: int) -> None:
        """The target memory of a fenced fetch may be written, now or when its reads come."""
        fenced = self._fenced.pop(fetch, None)
        if fenced is not None:
            self._post(fenced)
            return
        self._allowed[fetch] = None
        _forget_oldest(self._allowed, _MOST_ALLOWED)

    def poll(self) -> list[WorkerEvent]:
        """Moves bytes, and tells what has ended since."""
        self._transport.progress()
        for address in [address for address, peer in self._peers.items() if peer.connecting]:
            self._look_at_peer(address, self._peers[address])
        for fetch in list(self._reads):
            self._look_at_reads(fetch, self._reads[fetch])
        events, self._events = self._events, []
        return events

    def sockets(self) -> Sequence[Any]:
        """See ``DecodeLink``."""
        return ()

    def close(self) -> None:
        """Ends all reads at once and the transport with them."""
        self._transport.close()

    def _connect(self, command: ConnectPeer) -> None:
        try:
            plan = plan_transfer(command.layout, self._layout, self._own)
            handles = dict(self._connections(command, plan))
        except IncompatibleLayouts as error:
            self._report(command.address, command.attempt, str(error), error)
        except KVWeaveError as error:
            self._report(command.address, command.attempt, str(error))
        else:
            agents = {source: handle.peer for source, handle in handles.items()}
            memories = {source: _memories(command.layout.at(source)) for source in handles}
            padding = padding_tokens(plan.of(self._own))
            self._peers[command.address] = _Peer(
                command.attempt, plan, padding, agents, list(handles.values()), memories
            )
            if not handles:
                self._events.append(Connected(command.address, command.attempt, self._rank))

    def _connections(self, command: ConnectPeer, plan: TransferPlan) -> Iterator[tuple[RankCoordinates, ReadHandle]]:
        """Connects to every source that any request may read from."""
        agents = {rank.coordinates: agent for rank, agent in zip(command.layout.ranks, command.agents, strict=True)}
        for source in sorted({source.coordinates for read in plan.of(self._own) for source in read.sources}):
            yield source, self._transport.connect(agents[source])

    def _report(self, address: str, attempt: int, text: str, error: IncompatibleLayouts | None = None) -> None:
        problems = () if error is None else error.problems
        self._events.append(NotConnected(address, attempt, self._rank, text, problems))

    def _look_at_peer(self, address: str, peer: _Peer) -> None:
        failed = next((handle for handle in peer.connecting if handle.state is ReadState.FAILED), None)
        if failed is not None:
            peer.connecting = []
            self._report(address, peer.attempt, f"connection to rank {failed.peer}: {failed.error}")
        elif all(handle.state.terminal for handle in peer.connecting):
            peer.connecting = []
            self._events.append(Connected(address, peer.attempt, self._rank))

    def _drop(self, address: str) -> None:
        peer = self._peers.pop(address, None)
        for agent in peer.agents.values() if peer else ():
            self._transport.disconnect(agent)

    def _cancel(self, fetch: int) -> None:
        """Ends the reads of a fetch; those that never began have ended."""
        if self._fenced.pop(fetch, None) is not None:
            self._reads[fetch] = _Reads(self._clock())
        for handle in self._reads[fetch].handles if fetch in self._reads else ():
            self._transport.cancel(handle)

    def _post(self, command: PostReads) -> None:
        self._allowed.pop(command.fetch, None)
        reads = self._reads[command.fetch] = _Reads(self._clock())
        peer = self._peers.get(command.address)
        if peer is None:
            self._fail(command.fetch, FailureReason.PEER_LOST, f"{command.address} is not connected")
            return
        try:
            prepared = self._prepared.pop(command.fetch, None)
            if prepared is None or prepared.peer is not peer or prepared.reads != command:
                prepared = self._rows(peer, command)
            reads.handles += [self._transport.read(agent, part) for agent, part in prepared.parts]
        except BlockTableError as error:
            self._fail(command.fetch, FailureReason.BLOCK_TABLES, str(error))
        except KVWeaveError as error:
            self._fail(command.fetch, FailureReason.READ_FAILED, str(error))
        else:
            reads.statistics = _statistics(prepared.descriptors, self._clock() - reads.started_at)

    def _prepare(self, reads: PostReads) -> None:
        """Computes rows ahead; what is wrong with them is told by ``_post``, which computes them again."""
        peer = self._peers.get(reads.address)
        if peer is None:
            return
        with suppress(KVWeaveError):
            self._prepared[reads.fetch] = self._rows(peer, reads)
        _forget_oldest(self._prepared, _MOST_PREPARED)

    def _rows(self, peer: _Peer, command: PostReads) -> _Prepared:
        descriptors = peer.plan.descriptors(
            self._own, command.source_tables, command.target_tables,
            padded(command.num_tokens, command.start_token, peer.padding), command.start_token, command.salt,
        )  # fmt: skip
        parts = [
            (peer.agents[source], part)
            for source, rows in descriptors.items()
            for part in _parts(peer.memories[source], self._memories, rows)
        ]
        return _Prepared(command, peer, descriptors, tuple(parts))

    def _look_at_reads(self, fetch: int, reads: _Reads) -> None:
        for handle in reads.handles:
            if handle.state is ReadState.FAILED and not reads.failed:
                lost = handle.error is not None and handle.error.kind is TransportErrorKind.PEER_LOST
                reason = FailureReason.PEER_LOST if lost else FailureReason.READ_FAILED
                self._fail(fetch, reason, str(handle.error), handle.error)
        if all(handle.state.terminal for handle in reads.handles):
            del self._reads[fetch]
            now = self._clock()
            statistics = reads.statistics
            ended = ReadStatistics(
                statistics.bytes_from, statistics.num_rows, statistics.post_seconds, now - reads.started_at,
                statistics.incomplete,
            )  # fmt: skip
            self._events.append(ReadsEnded(fetch, self._rank, now, ended))

    def _fail(self, fetch: int, reason: FailureReason, text: str, error: TransportError | None = None) -> None:
        self._reads[fetch].failed = True
        self._events.append(ReadFailed(fetch, self._rank, reason, text, error))


def _forget_oldest(kept: dict[int, Any], most: int) -> None:
    """Lets the oldest entries go until at most ``most`` are left."""
    while len(kept) > most:
        del kept[next(iter(kept))]


def _memories(rank: RankLayout) -> _Memories:
    places = [(region.memory.value, region.device) for region in rank.regions]
    kinds = tuple(dict.fromkeys(places))
    return _Memories(kinds, np.array([kinds.index(place) for place in places], dtype=np.int64))


def _parts(there: _Memories, here: _Memories, rows: Rows) -> Iterator[ReadRows]:
    """The rows of one source, apart by memory kind and device of both ends."""
    kinds = there.numbers[rows.source_region] * len(here.kinds) + here.numbers[rows.target_region]
    for kind in np.unique(kinds).tolist():
        chosen = slice(None) if len(there.kinds) == len(here.kinds) == 1 else kinds == kind
        yield ReadRows(
            rows.source_address[chosen], rows.target_address[chosen], rows.nbytes[chosen],
            *there.kinds[kind // len(here.kinds)], *here.kinds[kind % len(here.kinds)],
        )  # fmt: skip


def _statistics(descriptors: RequestDescriptors, post_seconds: float) -> ReadStatistics:
    return ReadStatistics(
        {source: rows.total_bytes for source, rows in descriptors.items()}, descriptors.num_rows, post_seconds, 0.0,
        descriptors.incomplete,
    )  # fmt: skip
