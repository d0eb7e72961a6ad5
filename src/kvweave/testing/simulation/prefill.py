"""A simulated prefill engine: it computes prompts into its blocks, offers them, and frees them when it is told to."""

from __future__ import annotations

import itertools
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import Drained, PrefillEffect, Release, ReleaseReason, Send, TurnedDown
from kvweave.protocol.messages import Claimed, OfferKey, Renewed
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import PrefillSide
from kvweave.testing.simulation.blocks import Blocks, Tables, blocks_needed
from kvweave.testing.simulation.holding import Handover, Holding, Offered
from kvweave.testing.simulation.memory import BlockPool
from kvweave.testing.simulation.network import Connection
from kvweave.testing.simulation.progressive import Run, Runs
from kvweave.testing.simulation.scenario import Place, RequestPlan, Shape
from kvweave.testing.simulation.schedule import Process
from kvweave.testing.simulation.shapes import layout_of

if TYPE_CHECKING:
    from kvweave.testing.simulation.world import World


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
        self.engine_id = engine_id
        self._generations = itertools.count(dice.getrandbits(48))
        self._waiting: deque[Run] = deque()
        self.granted: dict[tuple[str, int], OfferKey] = {}
        self.computing = 0
        self.runs = Runs(world, self)

    @property
    def idle(self) -> bool:
        """Whether it holds nothing and nobody waits."""
        return not (self._waiting or self.computing or self.runs.living or self.offers or self.pool.held)

    def request(self, plan: RequestPlan) -> None:
        """A client sends a prompt."""
        if not self.taking:
            self._ledger.count("requests turned away")
        elif blocks_needed(self.shape, plan.num_tokens) > self.pool.size:
            self._ledger.count("requests too large")
        else:
            self._waiting.append(Run(plan))
            self.start()

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
        self.runs.check()

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
                    self._promise(connection, message)
                    self._world.network.answer(connection, self.place, encode(message))
                case Release():
                    self._release(effect)
                case TurnedDown():
                    self._ledger.count("verdicts of misfits heard")
                case Drained():
                    self._drained()

    def start(self) -> None:
        """Computes what waits, in its order, as far as there are blocks."""
        while self._waiting and self.pool.free >= blocks_needed(self.shape, self._waiting[0].plan.num_tokens):
            run = self._waiting.popleft()
            holding = self.take(run.plan)
            if run.plan.progress is None:
                holding.blocks.compute(self.pool, 0, run.plan.num_tokens // 2)
                self.computing += 1
                self.soon(run.plan.prefill_seconds, partial(self._offer, run.plan, holding))
            else:
                self.runs.begin(run, run.plan.progress, holding)

    def again(self, run: Run) -> None:
        """What was preempted begins anew as soon as there are blocks."""
        self._waiting.appendleft(run)
        self.soon(0.0, self.start)

    def take(self, plan: RequestPlan) -> Holding:
        """Blocks for a run of a prompt."""
        serial = self._world.next_serial(self)
        holding = Holding(Blocks.take(self.pool, self.shape, plan.num_tokens, serial), pins=1)
        self._ledger.note(f"{self.name} prefills", f"request {plan.number}", plan.request_id, holding.blocks)
        return holding

    def unpin(self, holding: Holding) -> None:
        """One reason less to keep blocks."""
        holding.pins -= 1
        if not holding.pins and not holding.void:
            holding.blocks.give_back(self.pool)
            self.soon(0.0, self.start)

    def make_offer(self, plan: RequestPlan, holding: Holding, num_tokens: int, tables: Tables) -> OfferReference:
        """A new offer, whose blocks are pinned from now on."""
        host, _, port = self.address.rpartition(":")
        reference = OfferReference(
            self.engine_id, host, int(port), plan.request_id, next(self._generations), num_tokens, tables
        )
        holding.pins += 1
        self.offers[reference.offer] = Offered(holding)
        self._ledger.note(f"{self.name} offers", f"request {plan.number}", reference.offer, f"#{holding.serial}")
        return reference

    def offered(self, plan: RequestPlan, reference: OfferReference) -> None:
        """The offer of a whole prompt was made; the engine may take it back."""
        self._ledger.count("offers")
        if plan.withdraw_after is not None:
            for delay in (plan.withdraw_after, plan.withdraw_after + 0.02):
                self.soon(delay, partial(self._withdraw, reference.offer))

    def _offer(self, plan: RequestPlan, holding: Holding) -> None:
        self.computing -= 1
        holding.blocks.compute(self.pool, plan.num_tokens // 2, plan.num_tokens)
        reference = self.make_offer(plan, holding, plan.num_tokens, holding.blocks.tables(plan.num_tokens))
        self.unpin(holding)
        self.perform(self.side.offer(self.clock, reference, plan.lease_seconds))
        self._world.hand_over(Handover(plan, reference, holding.serial))
        self.offered(plan, reference)

    def _withdraw(self, key: OfferKey) -> None:
        self._ledger.note(f"{self.name} withdraws", key)
        self.perform(self.side.withdraw(self.clock, key))

    def _promise(self, connection: Connection, message: object) -> None:
        """Remembers until when a reader may count on an offer, as this message says."""
        if not isinstance(message, Claimed | Renewed):
            return
        claim = connection.channel.process.name, message.claim
        if isinstance(message, Claimed):
            self.granted[claim] = message.offer
        offered = self.offers.get(self.granted[claim])
        if offered is None:
            self._ledger.fail(f"{self.name}: grants claim {message.claim} on an offer that it does not have")
        offered.promised_until = max(offered.promised_until, self.clock + message.lease_seconds)

    def _release(self, effect: Release) -> None:
        key = effect.offer
        offered = self.offers.pop(key, None)
        if offered is None:
            self._ledger.fail(f"{self.name}: {key} is released, but it is not pinned")
        holding = offered.holding
        self._ledger.note(f"{self.name} releases", key, effect.reason.value, f"#{holding.serial}")
        self._ledger.count(f"released: {effect.reason.value}")
        reads = self._world.reads_under(self, key)
        if reads and self.readable:
            self._ledger.count("blocks reused under a read after their lease")
            over = self.clock >= offered.promised_until
            self._ledger.require(
                over and effect.reason in (ReleaseReason.LEASE_ENDED, ReleaseReason.WITHDRAWN),
                f"{self.name}: {key} is released ({effect.reason.value}) while rank {reads[0].rank} of fetch "
                f"{reads[0].fetch} reads it",
            )
        self.unpin(holding)
        self.runs.released(key)

    def _drained(self) -> None:
        self._ledger.require(not self.drained, f"{self.name}: drained twice")
        self._ledger.require(not self.offers, f"{self.name}: drained with offers")
        self.drained = True
        self._world.when_drained(self)
