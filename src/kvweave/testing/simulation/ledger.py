"""What the simulation knows and the protocol does not: who truly owns which content, and what has happened so far.

A run that breaks a rule raises ``Violation``. Every step goes into a hash, so that two runs can be told apart by it,
and into a readable trace where one is wanted.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from struct import pack
from typing import NoReturn

from kvweave.testing.simulation.schedule import Schedule


class Violation(AssertionError):
    """The protocol broke a rule; the text says which, where and when."""


class Ledger:
    """Counts, hash and trace of one run."""

    def __init__(self, schedule: Schedule, traced: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self.trace: list[str] | None = [] if traced else None
        self._schedule = schedule
        self._hash = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """A hash of everything that was noted and when."""
        return self._hash.hexdigest()

    def note(self, what: str, *details: object) -> None:
        """Something happened; details are rendered only where there is a trace."""
        self._hash.update(pack("d", self._schedule.now))
        self._hash.update(what.encode())
        if self.trace is not None:
            self.trace.append(f"{self._schedule.now:9.4f}  {what}  {' '.join(map(str, details))}")

    def digest_bytes(self, data: bytes) -> None:
        """Lets bytes count towards the hash."""
        self._hash.update(data)

    def count(self, name: str, amount: int = 1) -> None:
        """Something countable happened."""
        self.counts[name] += amount

    def fail(self, text: str) -> NoReturn:
        """A rule is broken."""
        raise Violation(f"at {self._schedule.now:.4f} s: {text}")

    def require(self, holds: bool, text: str) -> None:
        """Raises ``Violation`` unless a rule holds."""
        if not holds:
            self.fail(text)
