"""The ranks of a simulated decode engine: they connect, read in stripes and from the replicas least loaded, and again.

They do what ``runtime/workers.py`` does, with the same functions of the core that deal a request out to replicas and
find others for what has failed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvweave.core.parallel import RankCoordinates
from kvweave.core.read import Read as PlannedRead
from kvweave.core.replicas import choose, others
from kvweave.core.spread import Spread
from kvweave.core.stripes import Stripe
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads, RetryReads
from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.memory import BlockPool
from kvweave.testing.simulation.reads import Read, Reads
from kvweave.testing.simulation.shapes import RankReads, rank_numbers, reads_of, slot_pairs, tables_fit

if TYPE_CHECKING:
    from kvweave.testing.simulation.decode import DecodeProcess
    from kvweave.testing.simulation.prefill import PrefillProcess
    from kvweave.testing.simulation.world import World

RankCommand = ConnectPeer | DropPeer | PostReads | RetryReads | CancelReads
Parts = Mapping[Stripe, tuple[PlannedRead, ...]]


class FindOthers(Protocol):
    """See ``core.replicas.others``."""

    def __call__(
        self, reads: Iterable[PlannedRead], served: Iterable[Stripe], failed: set[RankCoordinates]
    ) -> Parts | None:
        """Finds other sources."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A prefill process that the ranks are connected to, and what each rank reads from it."""

    process: PrefillProcess
    reads: tuple[RankReads, ...]
    spreads: tuple[Spread, ...]


@dataclass(slots=True)
class RankState:
    """What one rank does for one fetch. ``failed`` are sources that failed, in this try or one before.

    ``told``: that something failed in this try was reported.
    """

    stripes: tuple[Stripe, ...] = ()
    reads: list[Read] = field(default_factory=list)
    failed: set[RankCoordinates] = field(default_factory=set)
    reading: bool = True
    told: bool = False


@dataclass(frozen=True, slots=True)
class Fetching:
    """One fetch of the ranks, and the request that its target blocks belong to."""

    command: PostReads
    owner: int
    ranks: tuple[RankState, ...]


class Ranks:
    """All ranks of one decode process. ``spread`` and ``others`` are the core's."""

    def __init__(self, world: World, process: DecodeProcess, pool: BlockPool, dice: random.Random) -> None:
        self.spread: type[Spread] = Spread
        self.others: FindOthers = others
        self.reads = Reads(process, pool, world.read_faults, dice, world.ledger)
        self.fetching: dict[int, Fetching] = {}
        self._world = world
        self._ledger: Ledger = world.ledger
        self._process = process
        self._dice = dice
        self._peers: dict[str, Peer] = {}

    def submit(self, command: RankCommand, owner_of: Callable[[int], int]) -> None:
        """Carries one command out; ``owner_of`` says whose a fetch's target blocks are."""
        match command:
            case ConnectPeer():
                self._connect(command)
            case DropPeer():
                self._drop(command.address)
            case PostReads():
                self._post(command, owner_of(command.fetch))
            case RetryReads():
                self._retry(self.fetching[command.fetch], command.rank)
            case CancelReads():
                for read in self.reads.of_fetch(command.fetch):
                    self.reads.cancel(read, self._read_ended)

    def source(self, address: str) -> PrefillProcess | None:
        """Who is read from at an address."""
        peer = self._peers.get(address)
        return None if peer is None else peer.process

    def forget(self, owner: int) -> None:
        """A request is over."""
        for number in [number for number, fetching in self.fetching.items() if fetching.owner == owner]:
            del self.fetching[number]

    def _connect(self, effect: ConnectPeer) -> None:
        source = self._world.prefill_named(effect.agents[0].decode().rpartition("/")[0])
        reads = reads_of(source.shape, self._process.shape)
        self._peers[effect.address] = Peer(source, reads, tuple(self.spread(rank.planned) for rank in reads))
        for rank in range(self._process.shape.tp):
            delay = self._dice.uniform(0.001, 0.1)
            self._process.soon(delay, partial(self._connected, effect.address, effect.attempt, rank, source))

    def _connected(self, address: str, attempt: int, rank: int, source: PrefillProcess) -> None:
        process = self._process
        if source.readable:
            process.perform(process.side.connected(process.clock, address, attempt, rank))
        else:
            self._ledger.count("connections failed")
            process.perform(process.side.not_connected(process.clock, address, attempt, "the source is gone"))

    def _drop(self, address: str) -> None:
        peer = self._peers.pop(address, None)
        for read in self.reads.every() if peer else ():
            if peer and read.source is peer.process:
                self.reads.cancel(read, self._read_ended)

    def _post(self, command: PostReads, owner: int) -> None:
        self._ledger.require(
            owner not in self.reads.open,
            f"{self._process.name}: fetch {command.fetch} reads anew while it or another part of its request reads",
        )
        states = tuple(RankState() for _ in range(self._process.shape.tp))
        fetching = self.fetching[command.fetch] = Fetching(command, owner, states)
        peer = self._peers.get(command.address)
        for rank, state in enumerate(states):
            if peer is None:
                self._fail(fetching, rank, FailureReason.PEER_LOST)
            elif not tables_fit(command, peer.process.shape):
                self._fail(fetching, rank, FailureReason.BLOCK_TABLES)
            else:
                state.stripes = self._stripes(peer, rank, command)
                pieces = peer.reads[rank].pieces
                self._read(fetching, peer, rank, dict.fromkeys(state.stripes, pieces))
            self._look(command.fetch, rank)

    def _stripes(self, peer: Peer, rank: int, command: PostReads) -> tuple[Stripe, ...]:
        """From which replicas a rank reads: from those that it reads least from, a large request from several."""
        numbers = rank_numbers(peer.process.shape)
        loads = Counter(read.source_rank for read in self.reads.every() if read.rank == rank)
        in_flight = {source: loads[number] << 20 for source, number in numbers.items() if loads[number]}
        first = command.start_token if command.portion is None else command.portion.kept_start
        stripes = peer.spreads[rank].stripes(command.salt, first, command.num_tokens, in_flight)
        self._ledger.count("ranks that read in stripes", len(stripes) > 1)
        return stripes

    def _read(self, fetching: Fetching, peer: Peer, rank: int, parts: Parts) -> None:
        """One read a source."""
        numbers, pieces = rank_numbers(peer.process.shape), peer.reads[rank].pieces
        found: dict[RankCoordinates, list[tuple[int, int, int]]] = defaultdict(list)
        for stripe, chosen in parts.items():
            for piece in chosen:
                pairs = slot_pairs(piece, fetching.command, stripe)
                place = pieces.index(piece)
                found[choose(piece, stripe.turn).coordinates] += [(place, source, target) for source, target in pairs]
        state = fetching.ranks[rank]
        state.reads = [
            Read(fetching.command.fetch, fetching.owner, rank, peer.process, numbers[source], copies)
            for source, copies in found.items()
            if copies
        ]
        for read in state.reads:
            self.reads.post(read, self._read_ended)

    def _read_ended(self, read: Read) -> None:
        """The rank's transport knows; the rank sees it at its next look, the coordinator hears of it later."""
        self._process.soon(self._dice.uniform(0.0, 0.01), partial(self._look, read.fetch, read.rank))

    def _look(self, fetch: int, rank: int) -> None:
        fetching = self.fetching.get(fetch)
        if fetching is None or not fetching.ranks[rank].reading:
            return
        state = fetching.ranks[rank]
        failed = [read for read in state.reads if read.terminal and read.failed]
        if failed:
            coordinates = list(rank_numbers(failed[0].source.shape))
            state.failed.update(coordinates[read.source_rank] for read in failed)
        if failed and not state.told:
            lost = any(read.lost for read in failed)
            reason = FailureReason.PEER_LOST if lost else FailureReason.READ_FAILED
            self._fail(fetching, rank, reason, not lost and bool(self._elsewhere(fetching, rank)))
        if all(read.terminal for read in state.reads):
            self._end(fetching, rank)

    def _elsewhere(self, fetching: Fetching, rank: int) -> Parts:
        """What failed, by the stripes in which other replicas serve it; nothing when a part of it has none."""
        peer, state = self._peers.get(fetching.command.address), fetching.ranks[rank]
        if peer is None:
            return {}
        return self.others(peer.reads[rank].pieces, state.stripes, state.failed) or {}

    def _fail(self, fetching: Fetching, rank: int, reason: FailureReason, elsewhere: bool = False) -> None:
        fetching.ranks[rank].told = True
        self._ledger.count("ranks whose reads failed")
        self._process.soon(0.001, partial(self._hear_failure, fetching.command.fetch, rank, reason, elsewhere))

    def _hear_failure(self, fetch: int, rank: int, reason: FailureReason, elsewhere: bool) -> None:
        process = self._process
        self._ledger.note(f"{process.name} rank {rank}", f"fetch {fetch}: reads failed", reason.value)
        process.perform(process.side.read_failed(process.clock, fetch, rank, reason, "the read failed", elsewhere))

    def _end(self, fetching: Fetching, rank: int) -> None:
        fetching.ranks[rank].reading = False
        completed_at = self._process.clock
        delay = self._dice.uniform(0.001, 0.02) if self._dice.random() < 0.9 else self._dice.uniform(0.02, 1.0)
        self._process.soon(delay, partial(self._hear_end, fetching.command.fetch, rank, completed_at))

    def _hear_end(self, fetch: int, rank: int, completed_at: float) -> None:
        process = self._process
        self._ledger.note(f"{process.name} rank {rank}", f"fetch {fetch}: reads ended")
        process.perform(process.side.reads_ended(process.clock, fetch, rank, completed_at))

    def _retry(self, fetching: Fetching, rank: int) -> None:
        """Reads once more what failed, from other replicas."""
        self._ledger.count("reads tried again")
        state, peer = fetching.ranks[rank], self._peers.get(fetching.command.address)
        state.reads, state.reading, state.told = [], True, False
        parts = self._elsewhere(fetching, rank)
        if peer is None or not parts:
            self._fail(fetching, rank, FailureReason.READ_FAILED)
        else:
            self._ledger.count("stripes read again", len(state.stripes) > 1)
            self._read(fetching, peer, rank, parts)
        self._look(fetching.command.fetch, rank)
