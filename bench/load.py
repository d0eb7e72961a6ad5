"""Requests per second and added latency at the limit of the machine: ``python -m bench.load [--json]``.

Two processes over NIXL on this machine: one offers, the other one fetches, always so many requests at once. No model
computes: what is measured is what kvweave adds to a request, from the call of ``fetch`` with a reference in hand to the
delivery, and how many of these two processes bring about. Bytes are copied by the reader's thread here, so the larger
requests show the machine's memory, the smaller ones the protocol.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.load_pair import PAIRS, Memory, Pair
from kvweave.runtime import DecodeEngine, Fetch
from kvweave.transport.nixl import NixlTransport
from kvweave.version import __version__

ROOT = Path(__file__).parents[1]
AT_ONCE = (1, 8, 64)
SECONDS = 5.0
WARM_SECONDS = 1.0
AHEAD = 64
"""References that are kept ready beyond those under way."""
PATIENCE_SECONDS = 60.0
SCHEMA = "kvweave.bench.load/1"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one pair with so many requests at once; latencies in milliseconds."""

    pair: str
    at_once: int
    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    gigabytes_per_second: float
    request_bytes: int
    request_rows: int
    failed: int

    @staticmethod
    def of(pair: str, at_once: int, ended: Sequence[Ended], seconds: float) -> Figures:
        """From what ended within so many seconds."""
        good = [one for one in ended if one.nbytes]
        if not good:
            raise RuntimeError(f"{pair}, {at_once} at once: none of {len(ended)} requests was delivered")
        half, most = np.percentile([1e3 * one.seconds for one in good], [50, 99])
        rate = len(good) / seconds
        return Figures(
            pair, at_once, len(good), rate, float(half), float(most), rate * good[0].nbytes / 1e9, good[0].nbytes,
            good[0].rows, len(ended) - len(good),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that has ended; a failed one has no bytes."""

    seconds: float
    nbytes: int
    rows: int


class Source:
    """The process that offers; references come out of a queue that is kept filled."""

    def __init__(self, pair: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load_source", pair], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._references: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def order(self, count: int) -> None:
        """Asks for so many more references."""
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.write(f"{count}\n")
                self._process.stdin.flush()

    def take(self) -> dict[str, Any]:
        """The next reference."""
        found: dict[str, Any] = self._references.get(timeout=PATIENCE_SECONDS)
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=PATIENCE_SECONDS)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._references.put(json.loads(line))


class Drive:
    """Keeps so many fetches under way, each in its own target blocks."""

    def __init__(self, pair: Pair, engine: DecodeEngine, source: Source, at_once: int) -> None:
        self._pair, self._engine, self._source, self._at_once = pair, engine, source, at_once
        self._ended: queue.SimpleQueue[tuple[int, float, Fetch]] = queue.SimpleQueue()

    def run(self, seconds: float) -> list[Ended]:
        """What ended within so many seconds; returns when nothing is under way any more."""
        self._source.order(self._at_once + AHEAD)
        began: list[float] = [0.0] * self._at_once
        for place in range(self._at_once):
            began[place] = self._begin(place)
        under_way, found = self._at_once, []
        stop = time.perf_counter() + seconds
        while under_way:
            place, now, fetch = self._ended.get(timeout=PATIENCE_SECONDS)
            under_way -= 1
            if now > stop:
                continue
            found.append(_ended(fetch, now - began[place]))
            self._source.order(1)
            began[place] = self._begin(place)
            under_way += 1
        self._drain(AHEAD)
        return found

    def _begin(self, place: int) -> float:
        reference = self._source.take()
        blocks = self._pair.table(self._pair.decode_cache.block_size, place)
        now = time.perf_counter()
        fetch = self._engine.fetch(reference, {"full": blocks})
        fetch.add_done_callback(lambda done: self._ended.put((place, time.perf_counter(), done)))
        return now

    def _drain(self, references: int) -> None:
        """Fetches the references that are left, so that the next run has none whose lease is ending."""
        for _ in range(references):
            self._begin(0)
            self._ended.get(timeout=PATIENCE_SECONDS)


def _ended(fetch: Fetch, seconds: float) -> Ended:
    if fetch.error() is not None:
        return Ended(seconds, 0, 0)
    delivered = fetch.result(0)
    return Ended(seconds, delivered.nbytes, delivered.num_rows)


@contextmanager
def _source(pair: str) -> Iterator[Source]:
    source = Source(pair)
    try:
        yield source
    finally:
        source.close()


def measure(name: str, at_once: Sequence[int] = AT_ONCE, seconds: float = SECONDS) -> Iterator[Figures]:
    """All figures of one pair; raises ``RuntimeError`` where a byte did not arrive."""
    pair = PAIRS[name]
    memory = Memory(pair.decode_layout(max(at_once)), fill=0)
    with _source(name) as source, DecodeEngine(memory.layout, transport=NixlTransport) as engine:
        for count in at_once:
            drive = Drive(pair, engine, source, count)
            drive.run(WARM_SECONDS)
            yield Figures.of(name, count, drive.run(seconds), seconds)
    missing = memory.bytes_that_are(0)
    if missing:
        raise RuntimeError(f"{name}: {missing} bytes of the target memory were not written")


def main() -> int:
    options = _options()
    progress, measured = Console(stderr=True), []
    for name in options.pair or PAIRS:
        for figures in measure(name, options.at_once, options.seconds):
            progress.print(f"[dim]{figures.pair}, {figures.at_once} at once: {figures.requests_per_second:.0f}/s[/dim]")
            measured.append(figures)
    if options.json:
        json.dump(_document(measured), sys.stdout)
    else:
        Console().print(_table(measured))
    return 1 if any(figures.failed for figures in measured) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--pair", action="append", choices=list(PAIRS), help="one of the pairs (all of them)")
    parser.add_argument("--at-once", type=int, nargs="+", default=AT_ONCE, help="requests under way (1 8 64)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each figure")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def _document(measured: Sequence[Figures]) -> Mapping[str, Any]:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {"schema": SCHEMA, "machine": machine, "kvweave": __version__, "figures": [asdict(one) for one in measured]}


def _table(measured: Sequence[Figures]) -> Table:
    table = Table("pair", "a request", "at once", "requests/s", "p50 ms", "p99 ms", "GB/s", title="Load")
    for one in measured:
        size = f"{one.request_bytes / 1e6:.1f} MB in {one.request_rows} rows"
        figures = (f"{one.requests_per_second:,.0f}", f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}")
        table.add_row(one.pair, size, str(one.at_once), *figures, f"{one.gigabytes_per_second:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
