"""What a measurement says: values side by side, their ratio, and whether the ratio keeps its limit."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from kvweave.version import __version__

SCHEMA = "kvweave.bench/1"


class Bound(StrEnum):
    """Which side of a limit is the good one."""

    AT_LEAST = "at least"
    AT_MOST = "at most"
    BELOW = "below"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a ratio must keep."""

    bound: Bound
    value: float

    def __str__(self) -> str:
        return f"{self.bound.value} {self.value:g}"

    def holds(self, ratio: float) -> bool:
        """Whether a ratio keeps it.

        >>> Limit(Bound.AT_LEAST, 5).holds(5.0), Limit(Bound.BELOW, 1).holds(1.0)
        (True, False)
        """
        match self.bound:
            case Bound.AT_LEAST:
                return ratio >= self.value
            case Bound.AT_MOST:
                return ratio <= self.value
            case Bound.BELOW:
                return ratio < self.value


@dataclass(frozen=True, slots=True)
class Value:
    """One thing that was measured, repeatedly; its value is the median."""

    name: str
    unit: str
    samples: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    @staticmethod
    def of(name: str, unit: str, samples: Sequence[float]) -> Value:
        """From any sequence."""
        return Value(name, unit, tuple(samples))

    @staticmethod
    def speed(name: str, nbytes: int, seconds: Sequence[float]) -> Value:
        """Gigabytes per second, from the seconds that so many bytes took."""
        return Value(name, "GB/s", tuple(nbytes / 1e9 / one for one in seconds))

    @staticmethod
    def milliseconds(name: str, seconds: Sequence[float]) -> Value:
        """A duration."""
        return Value(name, "ms", tuple(1e3 * one for one in seconds))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the result. ``ratio`` says what is divided by what; ``note`` what stands beside it."""

    key: str
    title: str
    values: tuple[Value, ...]
    meaning: str = ""
    ratio: float | None = None
    limit: Limit | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the limit is kept; None where there is none."""
        return None if self.limit is None or self.ratio is None else self.limit.holds(self.ratio)

    def document(self) -> dict[str, Any]:
        """For programs, with every sample."""
        return {
            "key": self.key, "title": self.title,
            "values": [
                {"name": one.name, "unit": one.unit, "median": one.value, "samples": list(one.samples)}
                for one in self.values
            ],
            "meaning": self.meaning, "ratio": self.ratio,
            "limit": None if self.limit is None else {"bound": self.limit.bound.value, "value": self.limit.value},
            "holds": self.holds, "note": self.note,
        }  # fmt: skip


def all_hold(lines: Sequence[Line]) -> bool:
    """Whether no line breaks its limit."""
    return all(line.holds is not False for line in lines)


def document(lines: Sequence[Line], *, quick: bool, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The whole result for programs."""
    return {
        "schema": SCHEMA,
        "kvweave": __version__,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "system": platform.system(),
                    "python": platform.python_version()},
        "quick": quick,
        "ok": all_hold(lines),
        "lines": [line.document() for line in lines],
        **(more or {}),
    }  # fmt: skip
