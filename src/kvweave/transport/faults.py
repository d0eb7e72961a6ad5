"""Faults that the memory transport acts out, as values: what happens to one read, and who decides it.

A fault says how long a read takes, how it ends, and what it does to memory besides::

    Fault(delay=3)                     complete three progress() calls later, copying a part in each of them
    Fault(dropped=True)                never complete
    Fault(copied=0.5, error=kind)      copy the first half of the rows, then fail
    Fault(late_write=4)                complete, and write the same rows again four progress() calls later
    Fault(reversed_rows=True)          copy the rows from the last to the first
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvweave.errors import LocalProtocolError, TransportErrorKind


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one read; delays count the reader's ``progress()`` calls."""

    delay: int = 0
    copied: float = 1.0
    error: TransportErrorKind | None = None
    dropped: bool = False
    late_write: int | None = None
    reversed_rows: bool = False

    def __post_init__(self) -> None:
        if self.delay < 0 or not 0 <= self.copied <= 1 or (self.late_write or 0) < 0:
            raise LocalProtocolError(
                f"fault: delay {self.delay} and late_write {self.late_write} must be at least 0, "
                f"copied {self.copied} between 0 and 1"
            )
        if self.copied < 1 and self.error is None and not self.dropped:
            raise LocalProtocolError(f"fault: copied {self.copied} needs an error")


FaultSource = Callable[[], Fault]
"""Asked once per read, in the order in which reads are posted."""


def no_faults() -> Fault:
    """Every read is done by the next ``progress()``."""
    return Fault()


def scripted_faults(faults: Iterable[Fault]) -> FaultSource:
    """The given faults, one per read, and none after them."""
    script = iter(tuple(faults))
    return lambda: next(script, Fault())


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often reads suffer what, as probabilities; delays are drawn from 0 to ``most_delay``."""

    most_delay: int = 8
    dropped: float = 0.0
    failed: float = 0.0
    late_write: float = 0.0
    reversed_rows: float = 0.0


def seeded_faults(seed: int, rates: FaultRates) -> FaultSource:
    """Faults drawn at random; the same seed and rates give the same faults."""
    dice = random.Random(seed)

    def draw() -> Fault:
        failed = dice.random() < rates.failed
        return Fault(
            delay=dice.randint(0, rates.most_delay),
            copied=dice.random() if failed else 1.0,
            error=dice.choice(list(TransportErrorKind)) if failed else None,
            dropped=dice.random() < rates.dropped,
            late_write=dice.randint(0, rates.most_delay) if dice.random() < rates.late_write else None,
            reversed_rows=dice.random() < rates.reversed_rows,
        )

    return draw
