"""The workers: one per rank, each with a transport of its own. They move bytes and decide nothing.

A prefill worker registers its memory and makes progress so that peers can read it. A decode worker plans once per peer
for its own rank, computes a request's rows, posts its reads, and reports. Both are driven by the polling thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvweave.core.descriptors import RequestDescriptors
from kvweave.core.layout import EngineLayout, RankLayout
from kvweave.core.padding import padded, padding_tokens
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.read import Read
from kvweave.core.replicas import others
from kvweave.core.spread import Spread
from kvweave.core.stripes import Stripe
from kvweave.errors import BlockTableError, IncompatibleLayouts, KVWeaveError, TransportError, TransportErrorKind
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads, RetryReads
from kvweave.runtime.checksums import ChecksumBook
from kvweave.runtime.clock import Clock
from kvweave.runtime.events import (
    Connected,
    NotConnected,
    ReadFailed,
    ReadsEnded,
    ReadStatistics,
    WorkerCommand,
    WorkerEvent,
)
from kvweave.runtime.in_flight import InFlight
from kvweave.runtime.memory_kinds import MemoryKinds, split_by_kind
from kvweave.runtime.needs import Needs
from kvweave.transport.base import ReadHandle, ReadState, Transport
from kvweave.transport.rows import ReadRows

_MOST_ALLOWED = 4096
"""Fetches that are remembered as allowed; their reads may come later, and once more for a peer that was replaced."""
_MOST_FAILED = 64
"""Fetches whose failed reads may be kept until they are tried again; those of a fetch that was given up never are."""


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


@dataclass(slots=True)
class _Peer:
    attempt: int
    plan: TransferPlan
    spread: Spread
    padding: int
    agents: dict[RankCoordinates, str]
    connecting: list[ReadHandle]
    needs: Needs
    memories: dict[RankCoordinates, MemoryKinds]


@dataclass(slots=True)
class _Reads:
    started_at: float
    handles: list[ReadHandle] = field(default_factory=list)
    statistics: ReadStatistics = field(default_factory=ReadStatistics)
    failed: bool = False
    command: PostReads | None = None
    stripes: tuple[Stripe, ...] = ()
    failed_agents: set[str] = field(default_factory=set)
    rows: list[tuple[RankCoordinates, ReadRows]] = field(default_factory=list)


class DecodeWorker:
    """One decode rank, number ``rank`` of its engine. One thread calls it.

    ``registered`` says that its memory is registered with the transport already; with ``checks`` no reads end before
    the checksums of their sources came.
    """

    def __init__(
        self,
        rank: int,
        layout: EngineLayout,
        transport: Transport,
        clock: Clock,
        registered: bool = False,
        checks: ChecksumBook | None = None,
    ) -> None:
        self.checks = checks
        self._rank = rank
        self._layout = layout
        self._own = layout.ranks[rank]
        self._memories = MemoryKinds.of(self._own)
        self._transport = transport
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._reads: dict[int, _Reads] = {}
        self._fenced: dict[int, PostReads] = {}
        self._allowed: dict[int, None] = {}
        self._failed: dict[int, _Reads] = {}
        self._in_flight = InFlight()
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
            case PostReads(fence=int(fence)) if fence not in self._allowed:
                self._fenced[fence] = command
            case PostReads():
                self._post(command)
            case RetryReads(fetch, rank) if rank == self._rank:
                self._retry(fetch)
            case CancelReads(fetch):
                self._cancel(fetch)

    def allow(self, fence: int) -> None:
        """The target memory behind a fence may be written: now, and whenever reads come that begin only then."""
        self._allowed[fence] = None
        _forget_oldest(self._allowed, _MOST_ALLOWED)
        fenced = self._fenced.pop(fence, None)
        if fenced is not None:
            self._post(fenced)

    def poll(self) -> list[WorkerEvent]:
        """Moves bytes, and tells what has ended since."""
        self._transport.progress()
        self._in_flight.settle()
        for address in [address for address, peer in self._peers.items() if peer.connecting]:
            self._look_at_peer(address, self._peers[address])
        for fetch in list(self._reads):
            self._look_at_reads(fetch, self._reads[fetch])
        events, self._events = self._events, []
        return events

    def compare(self, fetch: int, sums: Sequence[int]) -> None:
        """The source's checksums came."""
        wrong = None if self.checks is None else self.checks.answer(fetch, sums)
        if wrong is not None and fetch in self._reads:
            self._fail(fetch, FailureReason.CORRUPTED, wrong)

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
            memories = {source: MemoryKinds.of(command.layout.at(source)) for source in handles}
            reads = plan.of(self._own)
            self._peers[command.address] = _Peer(
                command.attempt, plan, Spread(reads), padding_tokens(reads), agents, list(handles.values()),
                Needs(agents.values()), memories,
            )  # fmt: skip
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
        for fence in [fence for fence, command in self._fenced.items() if command.fetch == fetch]:
            del self._fenced[fence]
            self._reads[fetch] = _Reads(self._clock())
        for handle in self._reads[fetch].handles if fetch in self._reads else ():
            self._transport.cancel(handle)
        if self.checks is not None and fetch in self._reads:
            self._reads[fetch].rows.clear()
            self.checks.drop(fetch)

    def _post(self, command: PostReads) -> None:
        reads = self._reads[command.fetch] = _Reads(self._clock(), command=command)
        peer = self._peers.get(command.address)
        if peer is None:
            self._fail(command.fetch, FailureReason.PEER_LOST, f"{command.address} is not connected")
            return
        reads.stripes = self._spread(peer, command)
        try:
            descriptors = self._rows(peer, command, reads.stripes)
            self._read(peer, reads, descriptors)
        except BlockTableError as error:
            self._fail(command.fetch, FailureReason.BLOCK_TABLES, str(error))
        except KVWeaveError as error:
            self._fail(command.fetch, FailureReason.READ_FAILED, str(error))
        else:
            reads.statistics = _statistics(descriptors, self._clock() - reads.started_at)

    def _read(self, peer: _Peer, reads: _Reads, descriptors: RequestDescriptors) -> None:
        """Posts one by one: where one cannot be posted, those before it are under way and are waited for."""
        parts = [
            (source, part)
            for source, rows in descriptors.items()
            for part in split_by_kind(peer.memories[source], self._memories, rows)
        ]
        attended = reads.command is None or reads.command.attended
        for source, part in parts:
            reads.handles.append(self._transport.read(peer.agents[source], part, attended))
            self._in_flight.add(reads.handles[-1], part.total_bytes)
        if self.checks is not None:
            reads.rows += parts

    def _spread(self, peer: _Peer, command: PostReads) -> tuple[Stripe, ...]:
        """From which replicas a request is read: from those that are loaded least, and a large one from several."""
        loads = ((source, self._in_flight.of(agent)) for source, agent in peer.agents.items())
        in_flight = {source: nbytes for source, nbytes in loads if nbytes}
        return peer.spread.stripes(command.salt, _first_token(command), command.num_tokens, in_flight)

    def _rows(self, peer: _Peer, command: PostReads, stripes: tuple[Stripe, ...]) -> RequestDescriptors:
        """The rows of one command.

        What is behind the last token of a part may be being written, so only whole requests are padded, and these only
        where their last token is still to be moved.
        """
        portion = command.portion
        padding = peer.padding if portion is None or portion.others else 1
        return peer.plan.descriptors(
            self._own, command.source_tables, command.target_tables,
            padded(command.num_tokens, _first_token(command), padding), command.start_token,
            stripes=stripes, portion=portion,
        )  # fmt: skip

    def _look_at_reads(self, fetch: int, reads: _Reads) -> None:
        failed = [handle for handle in reads.handles if handle.state is ReadState.FAILED]
        reads.failed_agents.update(handle.peer for handle in failed)
        if failed and not reads.failed:
            error = failed[0].error
            lost = error is not None and error.kind is TransportErrorKind.PEER_LOST
            reason = FailureReason.PEER_LOST if lost else FailureReason.READ_FAILED
            self._fail(fetch, reason, str(error), error, elsewhere=not lost and bool(self._elsewhere(reads)))
        if all(handle.state.terminal for handle in reads.handles) and not self._checking(fetch, reads):
            del self._reads[fetch]
            if failed:
                self._failed[fetch] = reads
                _forget_oldest(self._failed, _MOST_FAILED)
            now = self._clock()
            statistics = reads.statistics
            ended = ReadStatistics(
                statistics.bytes_from, statistics.num_rows, statistics.post_seconds, now - reads.started_at,
                statistics.incomplete,
            )  # fmt: skip
            self._events.append(ReadsEnded(fetch, self._rank, now, ended, self._attended(reads)))

    def _attended(self, reads: _Reads) -> bool:
        peer = self._peers.get(reads.command.address) if reads.command else None
        return peer is None or peer.needs.note(reads.handles)

    def _checking(self, fetch: int, reads: _Reads) -> bool:
        """Whether checksums are awaited; begins with them when the last read has ended well.

        After a failure the rows stay: those that were read well are compared when the others were read elsewhere.
        """
        if self.checks is None or reads.failed:
            return False
        if reads.rows and reads.command is not None:
            self.checks.begin(fetch, reads.rows, reads.command.target_tables)
        reads.rows = []
        return self.checks.busy(fetch)

    def _fail(
        self,
        fetch: int,
        reason: FailureReason,
        text: str,
        error: TransportError | None = None,
        elsewhere: bool = False,
    ) -> None:
        self._reads[fetch].failed = True
        self._events.append(ReadFailed(fetch, self._rank, reason, text, error, elsewhere))

    def _elsewhere(self, reads: _Reads) -> dict[Stripe, tuple[Read, ...]]:
        """What failed, by the stripes in which other replicas serve it; nothing when a part of it has none."""
        peer = self._peers.get(reads.command.address) if reads.command else None
        if reads.command is None or peer is None:
            return {}
        return others(peer.plan.of(self._own), reads.stripes, _sources(peer, reads.failed_agents)) or {}

    def _retry(self, fetch: int) -> None:
        """Reads once more what failed, from other replicas."""
        reads = self._reads[fetch] = self._failed.pop(fetch, _Reads(self._clock()))
        reads.handles, reads.failed = [], False
        parts = self._elsewhere(reads)
        if reads.command is None or not parts:
            self._fail(fetch, FailureReason.READ_FAILED, "no other replica has what could not be read")
            return
        peer = self._peers[reads.command.address]
        failed = _sources(peer, reads.failed_agents)
        reads.rows = [(source, part) for source, part in reads.rows if source not in failed]
        again = [
            self._rows(replace(peer, plan=_only(peer.plan, self._own, part)), reads.command, (stripe,))
            for stripe, part in parts.items()
        ]
        try:
            for rows in again:
                self._read(peer, reads, rows)
        except KVWeaveError as error:
            self._fail(fetch, FailureReason.READ_FAILED, str(error))
        read = [_statistics(rows, 0.0) for rows in again]
        reads.statistics = reads.statistics.instead(failed, read)


def _first_token(command: PostReads) -> int:
    """The first token that is moved of layers that keep all of them."""
    return command.start_token if command.portion is None else command.portion.kept_start


def _forget_oldest(kept: dict[int, Any], most: int) -> None:
    """Lets the oldest entries go until at most ``most`` are left."""
    while len(kept) > most:
        del kept[next(iter(kept))]


def _sources(peer: _Peer, agents: set[str]) -> set[RankCoordinates]:
    return {source for source, agent in peer.agents.items() if agent in agents}


def _only(plan: TransferPlan, target: RankLayout, reads: tuple[Read, ...]) -> TransferPlan:
    return replace(plan, reads={target.coordinates: reads})


def _statistics(descriptors: RequestDescriptors, post_seconds: float) -> ReadStatistics:
    return ReadStatistics(
        {source: rows.total_bytes for source, rows in descriptors.items()}, descriptors.num_rows, post_seconds, 0.0,
        descriptors.incomplete,
    )  # fmt: skip
