"""A scenario from a seed: engines, requests and faults of every kind, so close together that they meet.

What is drawn for stripes and for progressive transfers has dice of its own (``ways.py``), so the requests and faults
beside it stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from kvweave.protocol.timing import Timing
from kvweave.testing.simulation.scenario import (
    CALM,
    SWIFT,
    Close,
    Crash,
    Drain,
    FailingReads,
    Fault,
    Partition,
    Place,
    RequestPlan,
    Role,
    Scenario,
    Shape,
    Slow,
    SlowReads,
    Stop,
    Tamper,
    Weather,
)
from kvweave.testing.simulation.ways import moment, with_ways

CALM_SHARE = 0.03
"""How many scenarios have no fault at all: there everything must be delivered."""


def draw(seed: int, requests: int = 20) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"scenario {seed}")
    prefill = tuple(Shape(dice.choice((1, 2, 4)), dice.randint(6, 14)) for _ in range(dice.choice((2, 2, 2, 3))))
    decode = tuple(Shape(dice.choice((1, 2, 2, 4)), dice.randint(6, 14)) for _ in range(dice.choice((2, 2, 2, 3))))
    horizon = 0.4 * requests
    lease_seconds = dice.choice((0.5, 1.0, 2.0, 3.0))
    calm = dice.random() < CALM_SHARE
    drawn = tuple(_request(dice, number, horizon, len(prefill), len(decode), calm) for number in range(requests))
    plans = tuple(sorted(drawn, key=lambda plan: plan.at))
    faults = (
        ()
        if calm
        else tuple(sorted(_faults(dice, horizon, lease_seconds, prefill, decode), key=lambda fault: fault.at))
    )
    weather = CALM if calm else _weather(dice)
    timing = SWIFT if calm else _timing(dice)
    ordinary = Scenario(seed, prefill, decode, plans, faults, weather, lease_seconds, timing, dice.random() < 0.3)
    return with_ways(ordinary, calm)


def _timing(dice: random.Random) -> Timing:
    return Timing(
        handshake_seconds=dice.choice((1.0, 2.0)),
        answer_seconds=dice.choice((0.5, 1.0, 2.0)),
        read_seconds=dice.choice((3.0, 6.0)),
        renew_fraction=dice.choice((0.2, 1 / 3, 0.6)),
        retry_seconds=1.0,
        resend_seconds=dice.choice((0.1, 0.3)),
        silence_seconds=dice.choice((0.8, 2.0)),
    )


def _weather(dice: random.Random) -> Weather:
    return Weather(
        lost=dice.choice((0.0, 0.02, 0.1, 0.3)),
        repeated=dice.choice((0.0, 0.05, 0.3)),
        late=dice.choice((0.0, 0.02, 0.1)),
        late_seconds=dice.choice((0.3, 1.0, 3.0)),
        read_seconds=dice.choice((0.05, 0.3, 1.0)),
        long_reads=dice.choice((0.0, 0.1, 0.3)),
        long_read_seconds=dice.choice((2.0, 4.0, 8.0)),
        clock_drift=0.0005,
    )


def _request(
    dice: random.Random, number: int, horizon: float, num_prefill: int, num_decode: int, calm: bool
) -> RequestPlan:
    first = dice.randrange(num_decode)
    decode = (first,) if dice.random() < 0.85 else (first, (first + 1) % num_decode)
    queue_seconds = dice.choice((None, None, dice.uniform(0.0, 0.5), dice.uniform(0.0, 5.0)))
    some = 0.0 if calm else 1.0
    return RequestPlan(
        number,
        dice.uniform(0.0, horizon),
        dice.randrange(num_prefill),
        decode[:1] if calm else decode,
        f"request {dice.randrange(6)}" if dice.random() < 0.4 else f"request {100 + number}",
        dice.randint(1, 5),
        dice.uniform(0.01, 0.3),
        dice.uniform(0.01, 0.4),
        queue_seconds,
        lease_seconds=dice.uniform(0.4, 4.0) if dice.random() < 0.2 else None,
        abort_after=moment(dice) if dice.random() < 0.15 * some else None,
        withdraw_after=moment(dice) if dice.random() < 0.1 * some else None,
        resent=tuple(moment(dice) for _ in range(dice.choice((1, 1, 2)))) if dice.random() < 0.2 * some else (),
        tamper=dice.choice(list(Tamper)) if dice.random() < 0.08 * some else None,
    )


def _faults(
    dice: random.Random, horizon: float, lease: float, prefill: tuple[Shape, ...], decode: tuple[Shape, ...]
) -> Iterator[Fault]:
    places = [Place(Role.PREFILL, n) for n in range(len(prefill))] + [Place(Role.DECODE, n) for n in range(len(decode))]
    for _ in range(dice.randint(1, 8)):
        at, place = dice.uniform(0.0, horizon), dice.choice(places)
        source, target = dice.randrange(len(prefill)), dice.randrange(len(decode))
        match dice.randrange(9):
            case 0 | 1:
                yield Stop(at, place, dice.choice((0.2, 1.0, lease + 0.3, 2 * lease, 3 * lease)))
            case 2 | 3:
                yield _crash(dice, at, place, (prefill, decode)[place.role is Role.DECODE][place.number])
            case 4:
                ways = dice.choice(((True, True), (True, False), (False, True)))
                yield Partition(at, dice.choice((0.3, 1.0, 3.0, 6.0)), source, target, *ways)
            case 5:
                rank = dice.choice((None, dice.randrange(prefill[source].tp), dice.randrange(prefill[source].tp)))
                yield FailingReads(at, dice.uniform(0.5, 4.0), source, rank)
            case 6:
                yield SlowReads(at, dice.uniform(0.5, 3.0), source, dice.choice((3.0, 10.0)))
            case 7:
                yield Slow(at, dice.uniform(0.5, 3.0), place, dice.choice((0.1, 0.5, 1.5)))
            case _:
                kind = dice.choice((Close, Drain))
                yield kind(at, place, dice.uniform(0.05, 1.0))


def _crash(dice: random.Random, at: float, place: Place, shape: Shape) -> Crash:
    seconds = None if dice.random() < 0.1 else dice.choice((0.01, 0.2, 1.0, 4.0))
    successor = None
    if place.role is Role.PREFILL and dice.random() < 0.1:
        successor = Shape(shape.tp, shape.blocks, head_size=16)
    return Crash(at, place, seconds, dice.random() < 0.7, dice.random() < 0.4, successor)
