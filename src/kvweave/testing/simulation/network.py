"""The control channel between engines: it delays, loses, repeats and reorders, and is cut for a while.

As with the real sockets, the decode side opens a channel per address, and whoever listens there sees a connection that
is new with every channel and with every process. What was sent before
a channel was closed still arrives; what is answered on it then does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.scenario import CALM, Partition, Place, Role, Scenario, Slow, Weather
from kvweave.testing.simulation.schedule import Process, Schedule


class Listener(Protocol):
    """A prefill process, seen from the network."""

    place: Place

    def hear(self, connection: Connection, data: bytes) -> None:
        """Takes a message."""
        ...


class Caller(Protocol):
    """A decode process, seen from the network."""

    place: Place

    def hear(self, address: str, data: bytes) -> None:
        """Takes a message."""
        ...

    def refused(self, address: str) -> None:
        """Nobody listens there."""
        ...


@dataclass(eq=False, slots=True)
class Channel:
    """A decode process's socket to one address."""

    caller: Caller
    process: Process
    address: str
    open: bool = True


@dataclass(frozen=True, slots=True)
class Connection:
    """A channel, as one prefill process sees it."""

    channel: Channel
    process: Process


Delays = Callable[[Place, Place, bytes], Sequence[float]]
"""How long the copies of one message between two engines take: none where it is lost, two where it is repeated."""


class Network:
    """Carries messages between processes. ``listening`` says who listens where."""

    def __init__(self, schedule: Schedule, ledger: Ledger, delays: Delays) -> None:
        self.listening: dict[str, tuple[Listener, Process]] = {}
        self._schedule = schedule
        self._ledger = ledger
        self._delays = delays

    def call(self, channel: Channel, prefill: Place | None, data: bytes) -> None:
        """From decode to prefill; ``prefill`` is the place that holds the address."""
        for delay in self._delays(channel.caller.place, prefill or channel.caller.place, data):
            self._schedule.after(delay, partial(self._reach, channel, data))

    def answer(self, connection: Connection, place: Place, data: bytes) -> None:
        """From prefill to decode."""
        for delay in self._delays(place, connection.channel.caller.place, data):
            self._schedule.after(delay, partial(self._return, connection, data))

    def _reach(self, channel: Channel, data: bytes) -> None:
        found = self.listening.get(channel.address)
        if found is None and not channel.open:
            return
        if found is None:
            self._ledger.count("connections refused")
            self._schedule.after(0.01, partial(channel.caller.refused, channel.address), channel.process)
            return
        listener, process = found
        self._ledger.digest_bytes(data)
        self._schedule.after(0, partial(listener.hear, Connection(channel, process), data), process)

    def _return(self, connection: Connection, data: bytes) -> None:
        channel = connection.channel
        if not channel.open:
            return
        self._ledger.digest_bytes(data)
        self._schedule.after(0, partial(_hear, channel, data), channel.process)


def _hear(channel: Channel, data: bytes) -> None:
    if channel.open:
        channel.caller.hear(channel.address, data)


class WeatherDelays:
    """Delays by the weather, by partitions and by slow engines; each pair and direction has dice of its own.

    From ``scenario.calm_at`` on the weather is calm.
    """

    def __init__(self, scenario: Scenario, schedule: Schedule, ledger: Ledger) -> None:
        self.cuts: list[Partition] = []
        self.slow: list[Slow] = []
        self._seed = scenario.seed
        self._calm_at = scenario.calm_at
        self._schedule = schedule
        self._ledger = ledger
        self._weather = scenario.weather
        self._dice: dict[tuple[Place, Place], random.Random] = {}

    def __call__(self, source: Place, target: Place, data: bytes) -> Sequence[float]:
        """See ``Delays``; what is in a message does not matter to the weather."""
        dice = self._dice.get((source, target))
        if dice is None:
            dice = self._dice[source, target] = random.Random(f"{self._seed} {source} {target}")
        weather = self._weather if self._schedule.now < self._calm_at else CALM
        copies = 1 if dice.random() >= weather.repeated else 2
        delays = [self._delay(weather, dice, source, target) for _ in range(copies)]
        if dice.random() < weather.lost or any(_cuts(cut, source, target) for cut in self.cuts):
            self._ledger.count("messages lost")
            return ()
        self._ledger.count("messages repeated", copies - 1)
        return delays

    def _delay(self, weather: Weather, dice: random.Random, source: Place, target: Place) -> float:
        longest = weather.late_seconds if dice.random() < weather.late else weather.quick_seconds
        more = sum(slow.delay for slow in self.slow if slow.place in (source, target))
        return dice.uniform(0.0001, longest) + more


def _cuts(cut: Partition, source: Place, target: Place) -> bool:
    to_prefill = target.role is Role.PREFILL
    prefill, decode = (target, source) if to_prefill else (source, target)
    one_way = cut.to_prefill if to_prefill else cut.to_decode
    return one_way and (cut.prefill, cut.decode) == (prefill.number, decode.number)
