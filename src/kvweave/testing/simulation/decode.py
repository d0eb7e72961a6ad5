"""A simulated decode engine: it holds offers for queued requests, fetches them into its blocks, uses them."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    FetchPart,
    PeerLost,
    PeerReady,
    PostReads,
    RetryReads,
    Reusable,
    Send,
)
from kvweave.protocol.follow_entry import Pursuit, Target
from kvweave.protocol.order import Order
from kvweave.protocol.sides import DecodeSide
from kvweave.testing.simulation.blocks import Blocks, blocks_needed
from kvweave.testing.simulation.memory import BlockPool
from kvweave.testing.simulation.network import Channel
from kvweave.testing.simulation.ranks import RankCommand, Ranks
from kvweave.testing.simulation.scenario import Mistake, Place, Progress, RequestPlan, Shape
from kvweave.testing.simulation.schedule import Process
from kvweave.testing.simulation.shapes import Wanted, layout_of, wrong_blocks

if TYPE_CHECKING:
    from kvweave.testing.simulation.holding import Handover
    from kvweave.testing.simulation.prefill import PrefillProcess
    from kvweave.testing.simulation.world import World


@dataclass(slots=True)
class Transfer:
    """One request as it truly is. ``serial`` is what its reference stands for, None where that is nothing.

    ``order`` of what is ``followed`` is that of its newest part, offered by ``source``.
    ``taken``: the engine has it in its books, where it is until the end also when nothing new is taken.
    """

    number: int
    plan: RequestPlan
    address: str
    order: Order | None = None
    serial: int | None = None
    blocks: Blocks | None = None
    report: Delivered | Failed | None = None
    followed: bool = False
    taken: bool = False
    source: PrefillProcess | None = None

    @property
    def start_token(self) -> int:
        """How many tokens the target has already."""
        return self.plan.progress.start_token if self.followed and self.plan.progress else 0


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
        self.ranks = Ranks(world, self, self.pool, dice)
        self.reads = self.ranks.reads
        self.side = DecodeSide(engine_id, layout_of(shape), world.scenario.timing)
        world.plant.decode(self.side)
        world.plant.ranks(self.ranks)
        self.transfers: dict[int, Transfer] = {}
        self.drained = False
        self._world = world
        self._ledger = world.ledger
        self._dice = dice
        self._numbers = itertools.count(dice.getrandbits(48) + 1)
        self._delivered = 0
        self._waiting: deque[Transfer] = deque()
        self._channels: dict[str, Channel] = {}
        self._parts: dict[int, Transfer] = {}

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
        plan, reference = handover.plan, handover.reference
        order = Order(reference.address, reference, {})
        transfer = Transfer(next(self._numbers), plan, reference.address, order, handover.serial)
        self.transfers[transfer.number] = transfer
        self._ledger.count("fetches")
        self._ledger.note(f"{self.name} takes", f"request {plan.number}", reference.offer, f"fetch {transfer.number}")
        if plan.queue_seconds is not None or self._waiting or self.pool.free < self._needed(transfer):
            transfer.taken = True
            self.perform(self.side.hold(self.clock, transfer.number, reference.address, reference))
        self._admit(transfer)

    def follow(self, plan: RequestPlan, progress: Progress, address: str) -> None:
        """A client sends a request that is prefilled at that address at the same time."""
        if not self.taking:
            self._ledger.count("requests turned away")
            return
        transfer = Transfer(next(self._numbers), plan, address, followed=True, taken=True)
        self.transfers[transfer.number] = transfer
        self._ledger.count("followed")
        self._ledger.note(f"{self.name} follows", f"request {plan.number}", f"fetch {transfer.number}")
        self.perform(self.side.follow(self.clock, transfer.number, _pursuit(plan, progress, address)))
        self._admit(transfer)

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
        follows, living = len(self.side.follows), len(self.transfers) - self._delivered
        known = len(self.side.fetches)
        self._ledger.require(
            follows <= living and known <= living + follows,
            f"{self.name}: {known} fetches and {follows} follows in the books, {living} requests are under way",
        )

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
                case FetchPart():
                    self._note_part(effect)
                case Delivered() | Failed():
                    self._report(effect)
                case Reusable():
                    self._reuse(effect.fetch)
                case PeerReady() | PeerLost():
                    self._ledger.count("handshakes" if isinstance(effect, PeerReady) else "peers lost")
                case Drained():
                    self._drained()

    def _command_ranks(self, command: RankCommand) -> None:
        channel = self._channels.pop(command.address, None) if isinstance(command, DropPeer) else None
        if channel is not None:
            channel.open = False
        self.ranks.submit(command, self._owner)

    def _owner(self, fetch: int) -> int:
        """Whose blocks a fetch reads into."""
        return self._parts[fetch].number if fetch in self._parts else fetch

    def _note_part(self, effect: FetchPart) -> None:
        transfer = self._parts[effect.fetch] = self.transfers[effect.follow]
        order = transfer.order = effect.order
        transfer.source = self.ranks.source(order.address)
        final = self._world.final_of(transfer.source, order.reference.offer) is not None
        self._ledger.count("final offers fetched" if final else "chunks fetched")
        text = f"{order.portion} to {order.reference.num_tokens} of {order.reference.offer}"
        self._ledger.note(f"{self.name} fetches a part", f"fetch {effect.follow}", text)

    def _needed(self, transfer: Transfer) -> int:
        return blocks_needed(self.shape, transfer.plan.num_tokens)

    def _admit(self, transfer: Transfer) -> None:
        plan = transfer.plan
        self.soon(plan.queue_seconds or 0.0, partial(self._queue, transfer))
        if plan.abort_after is not None:
            self.soon(plan.abort_after, partial(self._abort, transfer))

    def _queue(self, transfer: Transfer) -> None:
        """Its turn has come as soon as there are blocks."""
        if transfer.report is None:
            self._waiting.append(transfer)
            self._start()

    def _start(self) -> None:
        while self._waiting and self.pool.free >= self._needed(self._waiting[0]):
            transfer = self._waiting.popleft()
            blocks = transfer.blocks = Blocks.take(self.pool, self.shape, transfer.plan.num_tokens, transfer.number)
            self._ledger.note(f"{self.name} gives blocks", f"fetch {transfer.number}", blocks)
            self._fetch(transfer, blocks)

    def _fetch(self, transfer: Transfer, blocks: Blocks) -> None:
        tables, number = blocks.tables(transfer.plan.num_tokens), transfer.number
        if transfer.followed:
            self.reads.close_slots(blocks.slots(0, transfer.start_token))
            self.perform(self.side.begin_followed(self.clock, number, Target(tables, transfer.start_token)))
        elif transfer.order is not None:
            transfer.order = replace(transfer.order, tables=tables)
            self.perform(self.side.fetch(self.clock, number, transfer.order))

    def _abort(self, transfer: Transfer) -> None:
        if transfer.number not in self.transfers or transfer.report is not None:
            return
        self._ledger.note(f"{self.name} aborts", f"fetch {transfer.number}")
        state = self.side.fetches.state(transfer.number)
        followed = self.side.follows.state(transfer.number)
        if followed is not None:
            self._ledger.count(f"followed, aborted while {followed.value}")
        else:
            self._ledger.count(f"aborted while {state.value if state else 'waiting for blocks'}")
        self.perform(self.side.abort(self.clock, transfer.number))

    def _send(self, address: str, data: bytes) -> None:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(self, self, address)
        self._world.network.call(channel, self._world.place_at(address), data)

    def _report(self, effect: Delivered | Failed) -> None:
        transfer = self.transfers[effect.fetch]
        self._ledger.require(transfer.report is None, f"{self.name}: fetch {effect.fetch} is reported twice")
        transfer.report = effect
        if isinstance(effect, Failed):
            self._ledger.count(f"{'followed, ' * transfer.followed}failed: {effect.reason.value}")
            ends = effect.reason is not FailureReason.CLOSED or self.closing or not transfer.taken
            self._ledger.require(ends, f"{self.name}: fetch {effect.fetch} fails as if the engine closed")
            self._ledger.note(f"{self.name} fails", f"fetch {effect.fetch}", effect.reason.value, effect.text)
            if transfer in self._waiting:
                self._waiting.remove(transfer)
            return
        self._ledger.count("followed to the end" if transfer.followed else "delivered")
        self._ledger.note(f"{self.name} delivers", f"fetch {effect.fetch}")
        self._delivered += 1
        self._check(transfer)
        self.soon(transfer.plan.use_seconds, partial(self._used, transfer))

    def _check(self, transfer: Transfer) -> None:
        """Every piece of every token holds what the reference stood for, and nothing writes there any more."""
        number, order = transfer.number, transfer.order
        self._ledger.require(number not in self.reads.open, f"{self.name}: fetch {number} is delivered while it reads")
        if transfer.followed and order is not None:
            final = self._world.final_of(transfer.source, order.reference.offer)
            transfer.serial = final.serial if final is not None and final.answers(transfer.plan) else None
        if order is None or transfer.serial is None:
            self._ledger.fail(f"{self.name}: fetch {number} is delivered, but its reference is a false one")
        source = self._world.source_of(transfer.serial)
        wanted = Wanted(order.tables, transfer.start_token, order.reference.num_tokens, transfer.serial)
        for rank, block in wrong_blocks(source.shape, self.shape, wanted, self.reads.label):
            text = f"fetch {number} is delivered, block {block} of rank {rank} has foreign content"
            self._ledger.fail(f"{self.name}: {text}")

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
        self.ranks.forget(transfer.number)
        for part in [part for part, owner in self._parts.items() if owner is transfer]:
            del self._parts[part]
        if transfer.blocks is not None:
            self.reads.open_slots(transfer.blocks.slots(0, transfer.start_token))
            transfer.blocks.give_back(self.pool)
        self.soon(0.0, self._start)

    def _drained(self) -> None:
        self._ledger.require(not self.drained, f"{self.name}: drained twice")
        self.drained = True
        self._world.when_drained(self)


def _pursuit(plan: RequestPlan, progress: Progress, address: str) -> Pursuit:
    if not progress.told:
        return Pursuit(address, progress.transfer_id)
    wrong_length, wrong_name = (progress.mistake is one for one in (Mistake.OTHER_LENGTH, Mistake.OTHER_PROMPT))
    name = "another prompt" if wrong_name else progress.transfer_id
    return Pursuit(address, progress.transfer_id, plan.num_tokens + wrong_length, name)
