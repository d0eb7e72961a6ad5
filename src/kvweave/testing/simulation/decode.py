"""A simulated decode engine: it holds offers for queued requests, fetches them into its blocks, uses them."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import (
    CancelReads,
    ConnectPeer,
    DecodeEffect,
    Delivered,
    Drained,
    DropPeer,
    Failed,
    FailureReason,
    PeerLost,
    PeerReady,
    PostReads,
    RetryReads,
    Reusable,
    Send,
)
from kvweave.protocol.order import Order
from kvweave.protocol.sides import DecodeSide
from kvweave.testing.simulation.memory import BlockPool, content
from kvweave.testing.simulation.network import Channel
from kvweave.testing.simulation.reads import Read, Reads, choose_source
from kvweave.testing.simulation.scenario import Place, Shape
from kvweave.testing.simulation.schedule import Process
from kvweave.testing.simulation.shapes import GROUP, Piece, layout_of, pieces_of

if TYPE_CHECKING:
    from kvweave.testing.simulation.prefill import Handover, PrefillProcess
    from kvweave.testing.simulation.world import World


@dataclass(slots=True)
class Transfer:
    """One fetch as it truly is. ``failed`` are the reads of each rank's last try that failed."""

    number: int
    handover: Handover
    blocks: tuple[int, ...] = ()
    report: Delivered | Failed | None = None
    posted: PostReads | None = None
    reading: dict[int, list[Read]] = field(default_factory=dict)
    failed: dict[int, list[Read]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """A prefill process that the ranks are connected to."""

    process: PrefillProcess
    pieces: tuple[tuple[Piece, ...], ...]


class DecodeProcess(Process):
    """One process of a decode engine, its coordinator and ranks."""

    def __init__(self, world: World, place: Place, shape: Shape, name: str, engine_id: str) -> None:
        dice = random.Random(f"{world.scenario.seed} {name}")
        drift = world.scenario.weather.clock_drift
        super().__init__(world.schedule, name, dice.uniform(0, 1e6), 1 + dice.uniform(-drift, drift))
        self.place = place
        self.shape = shape
        self.taking = True
        self.closing = False
        self.named: tuple[str, ...] = ()
        self.pool = BlockPool(name, shape.blocks, world.ledger)
        self.reads = Reads(self, self.pool, world.read_faults, dice, world.ledger)
        self.side = DecodeSide(engine_id, layout_of(shape), world.scenario.timing)
        world.plant.decode(self.side)
        self.transfers: dict[int, Transfer] = {}
        self.drained = False
        self._world = world
        self._ledger = world.ledger
        self._dice = dice
        self._numbers = itertools.count(dice.getrandbits(48) + 1)
        self._delivered = 0
        self._waiting: deque[Transfer] = deque()
        self._channels: dict[str, Channel] = {}
        self._peers: dict[str, Peer] = {}

    @property
    def idle(self) -> bool:
        """Whether it holds nothing and nobody waits."""
        return not (self._waiting or self.transfers or self.pool.held or self.reads.open)

    def name_peers(self, addresses: Sequence[str]) -> None:
        """Handshakes with the peers of its configuration."""
        self.named = tuple(addresses)
        for address in addresses:
            self.perform(self.side.name_peer(self.clock, address))

    def arrive(self, handover: Handover) -> None:
        """A client sends a request with a reference."""
        if not self.taking:
            self._ledger.count("requests turned away")
            return
        transfer = Transfer(next(self._numbers), handover)
        self.transfers[transfer.number] = transfer
        plan, reference = handover.plan, handover.reference
        self._ledger.count("fetches")
        self._ledger.note(f"{self.name} takes", f"request {plan.number}", reference.offer, f"fetch {transfer.number}")
        if plan.queue_seconds is not None or self._waiting or self.pool.free < plan.blocks:
            self.perform(self.side.hold(self.clock, transfer.number, reference.address, reference))
        self.soon(plan.queue_seconds or 0.0, partial(self._queue, transfer))
        if plan.abort_after is not None:
            self.soon(plan.abort_after, partial(self._abort, transfer))

    def hear(self, address: str, data: bytes) -> None:
        """Takes a message from the network."""
        message = decode(data)
        self._ledger.note(f"{self.name} hears", address, message)
        self.perform(self.side.receive(self.clock, address, message))

    def refused(self, address: str) -> None:
        """Nobody listens at that address."""
        if self._dice.random() < 0.3:
            self._ledger.note(f"{self.name} is refused", address)
            self.perform(self.side.lose(self.clock, address, "connections are refused"))

    def wake(self) -> None:
        """Its timer has come."""
        self.perform(self.side.handle_timer(self.clock))

    def settle(self) -> None:
        """Sets its timer, and checks what must hold after every step."""
        self.wake_by(self.side.get_timer())
        known, living = len(self.side.fetches), len(self.transfers) - self._delivered
        self._ledger.require(known <= living, f"{self.name}: {known} fetches in the book, {living} are under way")

    def drain(self) -> None:
        """Takes nothing new."""
        self.taking = False
        self.perform(self.side.drain(self.clock))

    def begin_closing(self) -> None:
        """Gives everything up."""
        self.taking = False
        self._waiting.clear()
        self.perform(self.side.close(self.clock))

    def perform(self, effects: tuple[DecodeEffect, ...]) -> None:
        """Carries effects out."""
        for effect in effects:
            match effect:
                case Send():
                    self._send(str(effect.to), encode(effect.message))
                case ConnectPeer() | DropPeer() | PostReads() | RetryReads() | CancelReads():
                    self._command_ranks(effect)
                case Delivered() | Failed():
                    self._report(effect)
                case Reusable():
                    self._reuse(effect.fetch)
                case PeerReady():
                    self._ledger.count("handshakes")
                case PeerLost():
                    self._ledger.count("peers lost")
                case Drained():
                    self._drained()

    def _command_ranks(self, command: ConnectPeer | DropPeer | PostReads | RetryReads | CancelReads) -> None:
        match command:
            case ConnectPeer():
                self._connect(command)
            case DropPeer():
                self._drop(command.address)
            case PostReads():
                self._post(command)
            case RetryReads():
                self._retry(command)
            case CancelReads():
                self._cancel(command.fetch)

    def _queue(self, transfer: Transfer) -> None:
        """Its turn has come as soon as there are blocks."""
        if transfer.report is None:
            self._waiting.append(transfer)
            self._start()

    def _start(self) -> None:
        while self._waiting and self.pool.free >= self._waiting[0].handover.plan.blocks:
            transfer = self._waiting.popleft()
            transfer.blocks = self.pool.take(transfer.handover.plan.blocks, transfer.number)
            reference = transfer.handover.reference
            self._ledger.note(f"{self.name} fetches", f"fetch {transfer.number}", transfer.blocks)
            order = Order(reference.address, reference, {GROUP: transfer.blocks})
            self.perform(self.side.fetch(self.clock, transfer.number, order))

    def _abort(self, transfer: Transfer) -> None:
        if transfer.number not in self.transfers or transfer.report is not None:
            return
        self._ledger.note(f"{self.name} aborts", f"fetch {transfer.number}")
        state = self.side.fetches.state(transfer.number)
        self._ledger.count(f"aborted while {state.value if state else 'waiting for blocks'}")
        self.perform(self.side.abort(self.clock, transfer.number))

    def _send(self, address: str, data: bytes) -> None:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(self, self, address)
        self._world.network.call(channel, self._world.place_at(address), data)

    def _connect(self, effect: ConnectPeer) -> None:
        process = self._world.prefill_named(effect.agents[0].decode().rpartition("/")[0])
        self._peers[effect.address] = Peer(process, pieces_of(process.shape, self.shape))
        for rank in range(self.shape.tp):
            delay = self._dice.uniform(0.001, 0.1)
            self.soon(delay, partial(self._connected, effect.address, effect.attempt, rank, process))

    def _connected(self, address: str, attempt: int, rank: int, process: PrefillProcess) -> None:
        if process.readable:
            self.perform(self.side.connected(self.clock, address, attempt, rank))
        else:
            self._ledger.count("connections failed")
            self.perform(self.side.not_connected(self.clock, address, attempt, "the source is gone"))

    def _drop(self, address: str) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.open = False
        peer = self._peers.pop(address, None)
        for read in [read for reads in self.reads.open.values() for read in reads] if peer else ():
            if peer and read.source is peer.process:
                self.reads.cancel(read, self._read_ended)

    def _post(self, effect: PostReads) -> None:
        transfer = self.transfers[effect.fetch]
        self._ledger.require(
            effect.fetch not in self.reads.open, f"{self.name}: fetch {effect.fetch} reads anew while it reads"
        )
        transfer.posted = effect
        peer = self._peers.get(effect.address)
        for rank in range(self.shape.tp):
            transfer.reading[rank] = []
            refused = self._refusal(effect, peer)
            if peer is None or refused is not None:
                self._rank_failed(transfer, rank, refused or FailureReason.PEER_LOST)
                self._rank_ended(transfer, rank)
                continue
            for piece in range(len(peer.pieces[rank])):
                self._read(transfer, effect, peer, rank, piece, set())

    def _refusal(self, effect: PostReads, peer: Peer | None) -> FailureReason | None:
        """What a rank finds wrong with tables before it reads: blocks that are not there, or too few."""
        if peer is None:
            return None
        source, target = effect.source_tables.get(GROUP, ()), effect.target_tables[GROUP]
        fits = len(source) == len(target) and all(block < peer.process.shape.blocks for block in source)
        return None if fits else FailureReason.BLOCK_TABLES

    def _read(self, transfer: Transfer, effect: PostReads, peer: Peer, rank: int, piece: int, tried: set[int]) -> None:
        source = choose_source(peer.pieces[rank][piece], effect.salt, tried)
        if source is None:
            raise LookupError(f"{self.name}: no replica is left for rank {rank}")
        pairs = tuple(zip(effect.source_tables[GROUP], effect.target_tables[GROUP], strict=True))
        read = Read(effect.fetch, transfer.handover.serial, rank, piece, peer.process, source, pairs, tried=tried)
        transfer.reading[rank].append(read)
        self.reads.post(read, self._read_ended)

    def _read_ended(self, read: Read) -> None:
        """The rank's transport knows; the rank sees it at its next look, the coordinator hears of it later."""
        self.soon(self._dice.uniform(0.0, 0.01), partial(self._look, read.fetch, read.rank))

    def _look(self, fetch: int, rank: int) -> None:
        transfer = self.transfers.get(fetch)
        reads = transfer.reading.get(rank) if transfer else None
        if transfer is None or not reads or not all(read.terminal for read in reads):
            return
        failed = transfer.failed[rank] = [read for read in reads if read.failed]
        transfer.reading[rank] = []
        if failed:
            lost = any(read.lost for read in failed)
            reason = FailureReason.PEER_LOST if lost else FailureReason.READ_FAILED
            self._rank_failed(transfer, rank, reason, self._elsewhere(transfer, failed))
            for read in failed:
                read.tried.add(read.source_rank)
        self._rank_ended(transfer, rank)

    def _elsewhere(self, transfer: Transfer, failed: list[Read]) -> bool:
        """Whether all that failed can be read from another replica."""
        peer = self._peers.get(transfer.handover.reference.address)
        return peer is not None and all(
            choose_source(peer.pieces[read.rank][read.piece], 0, read.tried | {read.source_rank}) is not None
            for read in failed
        )

    def _rank_failed(self, transfer: Transfer, rank: int, reason: FailureReason, elsewhere: bool = False) -> None:
        self._ledger.count("ranks whose reads failed")
        self.soon(0.001, partial(self._hear_failure, transfer.number, rank, reason, elsewhere))

    def _hear_failure(self, number: int, rank: int, reason: FailureReason, elsewhere: bool) -> None:
        self._ledger.note(f"{self.name} rank {rank}", f"fetch {number}: reads failed", reason.value)
        self.perform(self.side.read_failed(self.clock, number, rank, reason, "the read failed", elsewhere))

    def _rank_ended(self, transfer: Transfer, rank: int) -> None:
        completed_at = self.clock
        delay = self._dice.uniform(0.001, 0.02) if self._dice.random() < 0.9 else self._dice.uniform(0.02, 1.0)
        self.soon(delay, partial(self._hear_end, transfer.number, rank, completed_at))

    def _hear_end(self, number: int, rank: int, completed_at: float) -> None:
        self._ledger.note(f"{self.name} rank {rank}", f"fetch {number}: reads ended")
        self.perform(self.side.reads_ended(self.clock, number, rank, completed_at))

    def _retry(self, effect: RetryReads) -> None:
        transfer = self.transfers[effect.fetch]
        peer = self._peers.get(transfer.handover.reference.address)
        failed = transfer.failed.pop(effect.rank)
        self._ledger.count("reads tried again")
        if peer is None or transfer.posted is None:
            self._rank_failed(transfer, effect.rank, FailureReason.PEER_LOST)
            self._rank_ended(transfer, effect.rank)
            return
        for read in failed:
            self._read(transfer, transfer.posted, peer, effect.rank, read.piece, read.tried)

    def _cancel(self, fetch: int) -> None:
        for read in list(self.reads.open.get(fetch, ())):
            self.reads.cancel(read, self._read_ended)

    def _report(self, effect: Delivered | Failed) -> None:
        transfer = self.transfers[effect.fetch]
        self._ledger.require(transfer.report is None, f"{self.name}: fetch {effect.fetch} is reported twice")
        transfer.report = effect
        if isinstance(effect, Failed):
            self._ledger.count(f"failed: {effect.reason.value}")
            self._ledger.note(f"{self.name} fails", f"fetch {effect.fetch}", effect.reason.value, effect.text)
            if transfer in self._waiting:
                self._waiting.remove(transfer)
            return
        self._ledger.count("delivered")
        self._ledger.note(f"{self.name} delivers", f"fetch {effect.fetch}")
        self._delivered += 1
        self._check(transfer)
        self.soon(transfer.handover.plan.use_seconds, partial(self._used, transfer))

    def _check(self, transfer: Transfer) -> None:
        """Every piece of every block holds what the reference stood for, and nothing writes there any more."""
        number, serial = transfer.number, transfer.handover.serial
        self._ledger.require(number not in self.reads.open, f"{self.name}: fetch {number} is delivered while it reads")
        if serial is None or transfer.posted is None:
            self._ledger.fail(f"{self.name}: fetch {number} is delivered, but its reference is a false one")
        process = self._world.source_of(serial)
        for rank, pieces in enumerate(pieces_of(process.shape, self.shape)):
            for piece in range(len(pieces)):
                for position, block in enumerate(transfer.blocks):
                    label = self.reads.label(rank, piece, block)
                    self._ledger.require(
                        label == content(serial, position),
                        f"{self.name}: fetch {number} is delivered, block {block} of rank {rank} has foreign content",
                    )

    def _used(self, transfer: Transfer) -> None:
        self._check(transfer)
        self._delivered -= 1
        self._free(transfer)

    def _reuse(self, number: int) -> None:
        transfer = self.transfers[number]
        self._ledger.require(isinstance(transfer.report, Failed), f"{self.name}: fetch {number} is reusable unfailed")
        self._ledger.require(
            number not in self.reads.open,
            f"{self.name}: fetch {number} is reusable while a read writes into its blocks",
        )
        self._free(transfer)

    def _free(self, transfer: Transfer) -> None:
        del self.transfers[transfer.number]
        self.pool.give_back(transfer.blocks, transfer.number)
        self.soon(0.0, self._start)

    def _drained(self) -> None:
        self._ledger.require(not self.drained, f"{self.name}: drained twice")
        self.drained = True
        self._world.when_drained(self)
