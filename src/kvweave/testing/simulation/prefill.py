"""A simulated prefill engine: it computes prompts into its blocks, offers them, and frees them when it is told to."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import Drained, PrefillEffect, Release, ReleaseReason, Send, TurnedDown
from kvweave.protocol.messages import Claimed, OfferKey, Renewed
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import PrefillSide
from kvweave.testing.simulation.memory import BlockPool
from kvweave.testing.simulation.network import Connection
from kvweave.testing.simulation.scenario import Place, RequestPlan, Shape
from kvweave.testing.simulation.schedule import Process
from kvweave.testing.simulation.shapes import GROUP, TOKENS_PER_BLOCK, layout_of

if TYPE_CHECKING:
    from kvweave.testing.simulation.world import World


@dataclass(slots=True)
class Offered:
    """What is truly behind an offer: which content, where, and until when its reader may count on it (own clock)."""

    serial: int
    blocks: tuple[int, ...]
    promised_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Handover:
    """A reference on its way to a decode engine, and the content that it stands for; None where it stands for none."""

    plan: RequestPlan
    reference: OfferReference
    serial: int | None


class PrefillProcess(Process):
    """One process of a prefill engine. ``agent`` names it in the agent data of its ranks."""

    def __init__(self, world: World, place: Place, shape: Shape, name: str, engine_id: str, address: str) -> None:
        dice = random.Random(f"{world.scenario.seed} {name}")
        drift = world.scenario.weather.clock_drift
        super().__init__(world.schedule, name, dice.uniform(0, 1e6), 1 + dice.uniform(-drift, drift))
        self.place = place
        self.shape = shape
        self.address = address
        self.agent = name
        self.readable = True
        self.taking = True
        self.closing = False
        self.pool = BlockPool(name, shape.blocks, world.ledger)
        agents = [f"{name}/{rank}".encode() for rank in range(shape.tp)]
        self.side = PrefillSide(engine_id, layout_of(shape), agents, world.scenario.lease_seconds)
        world.plant.prefill(self.side)
        self.offers: dict[OfferKey, Offered] = {}
        self.drained = False
        self._world = world
        self._ledger = world.ledger
        self._engine_id = engine_id
        self._generations = itertools.count(dice.getrandbits(48))
        self._waiting: deque[RequestPlan] = deque()
        self.granted: dict[int, OfferKey] = {}
        self._computing = 0

    @property
    def idle(self) -> bool:
        """Whether it holds nothing and nobody waits."""
        return not (self._waiting or self._computing or self.offers or self.pool.held)

    def request(self, plan: RequestPlan) -> None:
        """A client sends a prompt."""
        if not self.taking:
            self._ledger.count("requests turned away")
        elif plan.blocks > len(self.pool.labels):
            self._ledger.count("requests too large")
        else:
            self._waiting.append(plan)
            self._start()

    def hear(self, connection: Connection, data: bytes) -> None:
        """Takes a message from the network."""
        message = decode(data)
        self._ledger.note(f"{self.name} hears", connection.channel.process.name, message)
        self.perform(self.side.receive(self.clock, connection, message))

    def wake(self) -> None:
        """Its timer has come."""
        self.perform(self.side.handle_timer(self.clock))

    def settle(self) -> None:
        """Sets its timer, and checks what must hold after every step."""
        self.wake_by(self.side.get_timer())
        pinned = len(self.side.offers)
        self._ledger.require(
            pinned == len(self.offers), f"{self.name}: {pinned} offers in the book, {len(self.offers)} are pinned"
        )

    def drain(self) -> None:
        """Takes nothing new."""
        self.taking = False
        self.perform(self.side.drain())

    def begin_closing(self) -> None:
        """Tells everybody that it ends; its memory can be read until ``end``."""
        self.taking = False
        self._waiting.clear()
        self.perform(self.side.begin_closing(self.clock))

    def end(self) -> None:
        """The last act: nothing can be read any more, everything is released."""
        self.readable = False
        for offered in self.offers.values():
            offered.promised_until = 0.0
        self.perform(self.side.close())
        self._ledger.require(not self.offers, f"{self.name}: offers are pinned after the end")

    def perform(self, effects: tuple[PrefillEffect, ...]) -> None:
        """Carries effects out."""
        for effect in effects:
            match effect:
                case Send(to=Connection() as connection, message=message):
                    self._promise(message)
                    self._world.network.answer(connection, self.place, encode(message))
                case Release():
                    self._release(effect)
                case TurnedDown():
                    self._ledger.count("verdicts of misfits heard")
                case Drained():
                    self._drained()

    def _start(self) -> None:
        while self._waiting and self.pool.free >= self._waiting[0].blocks:
            plan = self._waiting.popleft()
            serial = self._world.next_serial(self)
            blocks = self.pool.take(plan.blocks, serial)
            half = plan.blocks // 2
            self.pool.write(blocks, serial, range(half))
            self._computing += 1
            self._ledger.note(f"{self.name} prefills", f"request {plan.number}", plan.request_id, blocks, f"#{serial}")
            self.soon(plan.prefill_seconds, partial(self._offer, plan, serial, blocks))

    def _offer(self, plan: RequestPlan, serial: int, blocks: tuple[int, ...]) -> None:
        self._computing -= 1
        self.pool.write(blocks, serial, range(plan.blocks // 2, plan.blocks))
        host, _, port = self.address.rpartition(":")
        reference = OfferReference(
            self._engine_id, host, int(port), plan.request_id, next(self._generations),
            plan.blocks * TOKENS_PER_BLOCK, {GROUP: blocks},
        )  # fmt: skip
        self.offers[reference.offer] = Offered(serial, blocks)
        self._ledger.count("offers")
        self._ledger.note(f"{self.name} offers", f"request {plan.number}", reference.offer, f"#{serial}")
        self.perform(self.side.offer(self.clock, reference, plan.lease_seconds))
        self._world.hand_over(Handover(plan, reference, serial))
        if plan.withdraw_after is not None:
            for delay in (plan.withdraw_after, plan.withdraw_after + 0.02):
                self.soon(delay, partial(self._withdraw, reference.offer))

    def _withdraw(self, key: OfferKey) -> None:
        self._ledger.note(f"{self.name} withdraws", key)
        self.perform(self.side.withdraw(self.clock, key))

    def _promise(self, message: object) -> None:
        """Remembers until when a reader may count on an offer, as this message says."""
        if isinstance(message, Claimed):
            self.granted[message.claim] = message.offer
        if isinstance(message, Claimed | Renewed):
            offered = self.offers.get(self.granted[message.claim])
            if offered is None:
                self._ledger.fail(f"{self.name}: grants claim {message.claim} on an offer that it does not have")
            offered.promised_until = max(offered.promised_until, self.clock + message.lease_seconds)

    def _release(self, effect: Release) -> None:
        offered = self.offers.pop(effect.offer, None)
        if offered is None:
            self._ledger.fail(f"{self.name}: {effect.offer} is released, but it is not pinned")
        self._ledger.note(f"{self.name} releases", effect.offer, effect.reason.value, f"#{offered.serial}")
        self._ledger.count(f"released: {effect.reason.value}")
        reads = [read for read in self._world.reads_of(offered.serial) if read.fetch in self.granted]
        if reads and self.readable:
            self._ledger.count("blocks reused under a read after their lease")
            over = self.clock >= offered.promised_until
            self._ledger.require(
                over and effect.reason in (ReleaseReason.LEASE_ENDED, ReleaseReason.WITHDRAWN),
                f"{self.name}: {effect.offer} is released ({effect.reason.value}) while rank {reads[0].rank} of fetch "
                f"{reads[0].fetch} reads it",
            )
        self.pool.give_back(offered.blocks, offered.serial)
        self.soon(0.0, self._start)

    def _drained(self) -> None:
        self._ledger.require(not self.drained, f"{self.name}: drained twice")
        self._ledger.require(not self.offers, f"{self.name}: drained with offers")
        self.drained = True
        self._world.when_drained(self)
