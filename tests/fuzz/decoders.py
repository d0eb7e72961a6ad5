"""Feeds every target with broken inputs for a while, and reports what came out that must not."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.fuzz.targets import Target, kept


@dataclass(slots=True)
class Result:
    """What one target was given: inputs, how many it took, the slowest one's seconds, and unforeseen errors."""

    name: str
    inputs: int = 0
    taken: int = 0
    slowest_seconds: float = 0.0
    slowest: bytes = b""
    faults: list[tuple[bytes, str]] = field(default_factory=list)


def feed(target: Target, inputs: Iterable[bytes], result: Result) -> Result:
    """Feeds these inputs; at most ten faults are kept."""
    for data in inputs:
        began = time.perf_counter()
        try:
            target.read(data)
            result.taken += 1
        except target.errors:
            pass
        except Exception:  # noqa: BLE001 - the unforeseen is what is looked for
            if len(result.faults) < 10:
                result.faults.append((data, traceback.format_exc()))
        seconds = time.perf_counter() - began
        result.inputs += 1
        if seconds > result.slowest_seconds:
            result.slowest_seconds, result.slowest = seconds, data
    return result


def drawn(target: Target, seed: int, number: int) -> Iterable[bytes]:
    """That many inputs of this seed, after those of the corpus."""
    generator = random.Random(f"{target.name} {seed}")
    yield from kept(target.name)
    for _ in range(number):
        yield target.make(generator)
