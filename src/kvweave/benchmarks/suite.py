"""The whole suite: one source process, one measurement after another, lines as they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kvweave.benchmarks.closed_loop import closed_loop
from kvweave.benchmarks.contiguous import contiguous
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.first_request import first_request
from kvweave.benchmarks.fragmented import fragmented
from kvweave.benchmarks.handshake import handshake
from kvweave.benchmarks.overhead import Functions, overhead
from kvweave.benchmarks.report import Line
from kvweave.benchmarks.source import Source

Measurement = Callable[[], Iterator[Line]]


def measurements(source: Source, effort: Effort, functions: Functions | None = None) -> Mapping[str, Measurement]:
    """All measurements by name, in their order; ``functions`` are vLLM's own, where it is installed."""
    return {
        "contiguous": lambda: contiguous(source, effort),
        "fragmented": lambda: fragmented(source, effort),
        "overhead": lambda: overhead(source, effort, functions),
        "handshake": lambda: handshake(effort),
        "loop": lambda: closed_loop(source, effort),
        "first": lambda: first_request(source, effort),
    }


NAMES = ("contiguous", "fragmented", "overhead", "handshake", "loop", "first")


def run(
    effort: Effort,
    chosen: tuple[str, ...] = NAMES,
    functions: Functions | None = None,
    begun: Callable[[str], None] | None = None,
) -> Iterator[Line]:
    """The lines of the chosen measurements; ``begun`` hears of each before it begins."""
    with Source() as source:
        for name, measure in measurements(source, effort, functions).items():
            if name in chosen:
                if begun is not None:
                    begun(name)
                yield from measure()
