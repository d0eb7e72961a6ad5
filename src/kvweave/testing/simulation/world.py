"""One run of a scenario: places and their processes, faults at their moments, and what must hold at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from kvweave.errors import KVWeaveError
from kvweave.protocol.messages import OfferKey
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.testing.simulation.decode import DecodeProcess
from kvweave.testing.simulation.holding import Handover
from kvweave.testing.simulation.ledger import Ledger, Violation
from kvweave.testing.simulation.network import Delays, Network, WeatherDelays
from kvweave.testing.simulation.plants import NO_PLANT, Plant
from kvweave.testing.simulation.prefill import PrefillProcess
from kvweave.testing.simulation.reads import Read, ReadFaults
from kvweave.testing.simulation.scenario import (
    Close,
    Crash,
    Drain,
    FailingReads,
    Fault,
    Partition,
    Place,
    Progress,
    RequestPlan,
    Role,
    Scenario,
    Shape,
    Slow,
    SlowReads,
    Stop,
    Tamper,
)
from kvweave.testing.simulation.schedule import Schedule

SETTLE_SECONDS = 150.0
"""How long after the last fault everything must have ended: some queues are long and their blocks few."""
CLOSE_SECONDS = 2.0

_Process = PrefillProcess | DecodeProcess
AnyFault = TypeVar("AnyFault", bound=Fault)


@dataclass(slots=True)
class Slot:
    """Who holds a place, and the how many-th it is."""

    process: _Process
    shape: Shape
    start: int = 0


@dataclass(frozen=True, slots=True)
class Final:
    """The content behind the final offer of a progressive transfer."""

    serial: int
    transfer_id: str

    def answers(self, plan: RequestPlan) -> bool:
        """Whether it is what a request follows, rightly named."""
        progress = plan.progress
        misled = progress is not None and progress.told and progress.mistake is not None
        return progress is not None and progress.transfer_id == self.transfer_id and not misled


class World:
    """A scenario as it unfolds. ``delays`` replaces the weather's where a test scripts the network."""

    def __init__(
        self, scenario: Scenario, plant: Plant = NO_PLANT, traced: bool = False, delays: Delays | None = None
    ) -> None:
        self.scenario = scenario
        self.plant = plant
        self.schedule = Schedule()
        self.ledger = Ledger(self.schedule, traced)
        self.weather = WeatherDelays(scenario, self.schedule, self.ledger)
        self.network = Network(self.schedule, self.ledger, delays or self.weather)
        self.read_faults = ReadFaults(scenario.weather)
        self._dice = random.Random(f"{scenario.seed} clients")
        self._slots: dict[Place, Slot] = {}
        self._places: dict[str, Place] = {}
        self._prefills: dict[str, PrefillProcess] = {}
        self._decodes: list[DecodeProcess] = []
        self._sources: list[str] = []
        self._finals: dict[tuple[str, OfferKey], Final] = {}
        for role, shapes in ((Role.PREFILL, scenario.prefill), (Role.DECODE, scenario.decode)):
            for number, shape in enumerate(shapes):
                self._start(Place(role, number), shape)
        for plan in scenario.requests:
            self.schedule.at(plan.at, partial(self._request, plan))
        for fault in scenario.faults:
            self.schedule.at(fault.at, partial(self._suffer, fault))

    def run(self) -> None:
        """Lets everything happen, and checks the end; raises ``Violation``."""
        try:
            self.schedule.run(self.scenario.calm_at)
            deadline = self.scenario.calm_at + SETTLE_SECONDS
            while (left := self.left_over()) and self.schedule.now < deadline:
                self.schedule.run(self.schedule.now + 2.0)
            self.ledger.require(not left, "not over: " + "; ".join(left))
        except KVWeaveError as error:
            raise Violation(f"at {self.schedule.now:.4f} s: {type(error).__name__}: {error}") from error

    def next_serial(self, process: PrefillProcess) -> int:
        """A serial number for content that this process computes."""
        self._sources.append(process.name)
        return len(self._sources) - 1

    def source_of(self, serial: int) -> PrefillProcess:
        """Who computed that content."""
        return self._prefills[self._sources[serial]]

    def prefill_named(self, name: str) -> PrefillProcess:
        """The prefill process of that name, dead or alive."""
        return self._prefills[name]

    def place_at(self, address: str) -> Place | None:
        """Whose address it is."""
        return self._places.get(address)

    def note_final(self, process: PrefillProcess, key: OfferKey, serial: int, transfer_id: str) -> None:
        """The final offer of a progressive transfer."""
        self._finals[process.name, key] = Final(serial, transfer_id)

    def final_of(self, process: PrefillProcess | None, key: OfferKey) -> Final | None:
        """What is behind an offer, if it is a final one."""
        return None if process is None else self._finals.get((process.name, key))

    def reads_under(self, process: PrefillProcess, key: OfferKey) -> list[Read]:
        """All reads under way of fetches that were granted a claim on this offer."""
        return [
            read
            for decode in self._decodes
            if decode.alive
            for read in decode.reads.every()
            if read.source is process and process.granted.get((decode.name, read.fetch)) == key
        ]

    def prefill(self, number: int) -> PrefillProcess:
        """Who holds that place now."""
        process = self._slots[Place(Role.PREFILL, number)].process
        assert isinstance(process, PrefillProcess)
        return process

    def decode(self, number: int) -> DecodeProcess:
        """Who holds that place now."""
        process = self._slots[Place(Role.DECODE, number)].process
        assert isinstance(process, DecodeProcess)
        return process

    def hand_over(self, handover: Handover) -> None:
        """A client passes a reference on, to one engine or several, once or again."""
        plan = handover.plan
        if plan.tamper is not None:
            handover = Handover(plan, _tampered(handover.reference, plan.tamper), None)
        moment = 0.0
        for number in plan.decode:
            moment += self._dice.uniform(0.001, 0.05)
            self.schedule.after(moment, partial(self._pass_on, number, handover))
        for delay in plan.resent:
            moment += delay
            again = replace(handover, plan=replace(plan, abort_after=None))
            self.schedule.after(moment, partial(self._pass_on, plan.decode[0], again))

    def when_drained(self, process: _Process) -> None:
        """A drained engine is closed and replaced."""
        self.ledger.count(f"drained: {process.place.role.value}")
        self.ledger.note(f"{process.name} is drained")
        self.schedule.after(0.01, partial(self._close, process, 0.3))

    def left_over(self) -> list[str]:
        """What is not over yet: requests, blocks, records of the dead."""
        left = []
        addresses = list(self.network.listening)
        for slot in self._slots.values():
            process = slot.process
            if not process.alive:
                continue
            if not process.idle:
                left.append(f"{process.name} is not idle")
            if isinstance(process, PrefillProcess):
                holdings = _held_by_prefill(process.side, sum(decode.alive for decode in self._decodes))
            else:
                holdings = _held_by_decode(process.side)
                listed = (*addresses, *process.named)
                holdings["dead peers"] = len([peer for peer in process.side.peers.addresses if peer not in listed])
            left += [f"{process.name} has {n} {what}" for what, n in holdings.items() if n > 0]
        return left

    def _start(self, place: Place, shape: Shape, before: Slot | None = None, crash: Crash | None = None) -> None:
        start = before.start + 1 if before else 0
        name = f"{place}.{start}"
        engine_id = f"{place.role.value}-{place.number}"
        if crash is None or not crash.same_id:
            engine_id += f"-{start}"
        process: _Process
        if place.role is Role.PREFILL:
            address = f"10.0.{place.number}.{start + 1}:5600"
            if (
                before is not None
                and isinstance(before.process, PrefillProcess)
                and (crash is None or crash.same_address)
            ):
                address = before.process.address
            process = self._prefills[name] = PrefillProcess(self, place, shape, name, engine_id, address)
            self._places[address] = place
            self.network.listening[address] = process, process
        else:
            process = DecodeProcess(self, place, shape, name, engine_id)
            self._decodes.append(process)
            if self.scenario.named_peers:
                for delay in (0.0, 1.0):
                    process.soon(delay, partial(process.name_peers, list(self.network.listening)))
        self._slots[place] = Slot(process, shape, start)
        self.ledger.note(f"{name} starts", engine_id)
        process.settle()

    def _request(self, plan: RequestPlan) -> None:
        progress = plan.progress
        if progress is None:
            self._prompt(plan)
            return
        if progress.begin_after is not None:
            self.schedule.after(progress.begin_after, partial(self._prompt, plan))
        address = self.prefill(plan.prefill).address
        for number, delay in zip(plan.decode, progress.follow_after, strict=False):
            self.schedule.after(delay, partial(self._follow, number, plan, progress, address))
        for delay in plan.resent if progress.follow_after else ():
            again = replace(plan, abort_after=None)
            moment = progress.follow_after[0] + delay
            self.schedule.after(moment, partial(self._follow, plan.decode[0], again, progress, address))

    def _follow(self, number: int, plan: RequestPlan, progress: Progress, address: str) -> None:
        process = self.decode(number)
        if process.alive:
            process.soon(0.0, partial(process.follow, plan, progress, address))
        else:
            self.ledger.count("references to a dead engine")

    def _prompt(self, plan: RequestPlan) -> None:
        process = self.prefill(plan.prefill)
        if process.alive:
            process.soon(0.0, partial(process.request, plan))
        else:
            self.ledger.count("requests to a dead engine")

    def _pass_on(self, number: int, handover: Handover) -> None:
        process = self.decode(number)
        if process.alive:
            process.soon(0.0, partial(process.arrive, handover))
        else:
            self.ledger.count("references to a dead engine")

    def _suffer(self, fault: Fault) -> None:
        self.ledger.count(f"fault: {type(fault).__name__}")
        self.ledger.note("fault", fault)
        match fault:
            case Stop():
                process = self._slots[fault.place].process
                process.stopped_until = max(process.stopped_until, self.schedule.now + fault.seconds)
            case Crash():
                self._crash(fault)
            case Close():
                self._close(self._slots[fault.place].process, fault.seconds)
            case Drain():
                process = self._slots[fault.place].process
                if process.alive and process.taking:
                    process.soon(0.0, process.drain)
            case Partition():
                self._for_a_while(self.weather.cuts, fault, fault.seconds)
            case Slow():
                self._for_a_while(self.weather.slow, fault, fault.seconds)
            case FailingReads():
                self._for_a_while(self.read_faults.failing, fault, fault.seconds)
            case SlowReads():
                self._for_a_while(self.read_faults.slow, fault, fault.seconds)

    def _for_a_while(self, active: list[AnyFault], fault: AnyFault, seconds: float) -> None:
        active.append(fault)
        self.schedule.after(seconds, partial(active.remove, fault))

    def _crash(self, fault: Crash) -> None:
        slot = self._slots[fault.place]
        if not slot.process.alive:
            return
        self._bury(slot.process)
        if fault.seconds is not None:
            shape = fault.shape or slot.shape
            self.schedule.after(fault.seconds, partial(self._start, fault.place, shape, slot, fault))

    def _close(self, process: _Process, seconds: float) -> None:
        if process.alive and not process.closing:
            process.closing = True
            process.soon(0.0, process.begin_closing)
            process.soon(self._dice.uniform(0.01, 0.5), partial(self._end, process, seconds, self.schedule.now))

    def _end(self, process: _Process, seconds: float, since: float) -> None:
        if isinstance(process, PrefillProcess):
            process.end()
        elif process.side.fetches.reading and self.schedule.now < since + CLOSE_SECONDS:
            process.soon(0.05, partial(self._end, process, seconds, since))
            return
        slot = self._slots[process.place]
        self._bury(process)
        self.schedule.after(seconds, partial(self._start, process.place, self._healthy(process.place), slot))

    def _healthy(self, place: Place) -> Shape:
        shapes = self.scenario.prefill if place.role is Role.PREFILL else self.scenario.decode
        return shapes[place.number]

    def _bury(self, process: _Process) -> None:
        process.alive = False
        self.ledger.note(f"{process.name} ends")
        if isinstance(process, PrefillProcess):
            process.readable = False
            if self.network.listening.get(process.address, (None, None))[0] is process:
                del self.network.listening[process.address]


def _held_by_prefill(side: PrefillSide, callers: int) -> dict[str, int]:
    """What the books of a prefill side hold, some of it of no concern to any other."""
    transfers = side.transfers
    return {
        "offers": len(side.offers), "attended": side.offers.attended, "guests": len(side.reception) - callers,
        "transfers": len(transfers), "final offers": len(transfers._finals), "waiting": len(transfers._waiting),
    }  # fmt: skip


def _held_by_decode(side: DecodeSide) -> dict[str, int]:
    fetches, follows = side.fetches, side.follows
    return {
        "fetches": len(fetches), "begun": fetches.begun, "reading": fetches.reading, "follows": len(follows),
        "owed": len(fetches.acknowledgements), "parts": len(follows._owners), "leaving": len(follows._leaving),
    }  # fmt: skip


def _tampered(reference: OfferReference, tamper: Tamper) -> OfferReference:
    match tamper:
        case Tamper.UNKNOWN_REQUEST:
            return replace(reference, request_id=f"{reference.request_id}?")
        case Tamper.OTHER_GENERATION:
            return replace(reference, generation=reference.generation + 1_000_000)
        case Tamper.OTHER_ENGINE:
            return replace(reference, engine_id="another engine")
        case Tamper.OTHER_LENGTH:
            return replace(reference, num_tokens=reference.num_tokens - 1)
        case Tamper.OTHER_BLOCKS:
            return replace(reference, tables={name: tuple(b + 1 for b in t) for name, t in reference.tables.items()})
