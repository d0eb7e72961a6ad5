"""Which engine is killed or stopped when, drawn from a seed.

Of each side one engine is killed, again and again; the other one is only stopped, so it meets every death of its peers
and keeps what they leave behind. A stop is longer than the lease::

    prefill-0, decode-0     stopped, continued
    prefill-1, decode-1     stopped, continued, killed, replaced at the same address
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SIDES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to an engine when so many requests have begun; killed where ``stopped_seconds`` is None."""

    at_request: int
    engine: str
    stopped_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many faults of each kind and side."""

    kills: int = 20
    stops: int = 4


def draw(seed: int, first: int, last: int, wanted: Wanted, lease_seconds: float) -> tuple[Fault, ...]:
    """Faults at requests of [first, last), evenly spread but for a random part, in their order."""
    chance = random.Random(seed)
    found: list[Fault] = []
    for side in SIDES:
        found += (
            Fault(_place(chance, first, last, number, wanted.kills), f"{side}-1") for number in range(wanted.kills)
        )
        for number in range(wanted.stops):
            place = _place(chance, first, last, number, wanted.stops)
            seconds = round(lease_seconds * chance.uniform(1.2, 2.0), 2)
            found.append(Fault(place, f"{side}-{number % 2}", seconds))
    return tuple(sorted(found, key=lambda fault: fault.at_request))


def _place(chance: random.Random, first: int, last: int, number: int, count: int) -> int:
    """A place in the number-th of ``count`` equal parts."""
    return first + int((number + chance.random()) * (last - first) / count)
