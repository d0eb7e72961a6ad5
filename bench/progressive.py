"""From the last prefilled token to the complete cache: ``python -m bench.progressive [--json]``.

Two processes over NIXL on this machine. A prompt is prefilled in four chunks; its cache moves when the last one is
there (at once), or each chunk while the next one is computed (progressive). Both ways take turns in one run. Computing
is waiting here, as long for each chunk as moving one takes and half as long again: with less the reads of one chunk
would reach into the next ones, and the figure would show the machine's bandwidth.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.load_pair import Memory
from bench.progressive_pair import CHUNKS, blocks, layout
from kvweave.runtime import DecodeEngine, Fetch, new_transfer_id
from kvweave.runtime.clock import boot_time
from kvweave.transport.nixl import NixlTransport
from kvweave.version import __version__

ROOT = Path(__file__).parents[1]
ROUNDS = 7
PACE = 1.5
"""How much longer a chunk is computed than it takes to move one."""
PATIENCE_SECONDS = 60.0
SCHEMA = "kvweave.bench.progressive/1"


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians in milliseconds from the last prefilled token to the complete cache, and what they come from."""

    at_once_ms: float
    progressive_ms: float
    ratio: float
    chunk_compute_ms: float
    chunk_move_ms: float
    request_bytes: int
    early_bytes: int
    chunks: int
    rounds: int

    @property
    def meaningful(self) -> bool:
        """Whether a chunk took at least as long to compute as to move."""
        return self.chunk_compute_ms >= self.chunk_move_ms


class Source:
    """The process that prefills."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.progressive_source"], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.address = str(self.answer()["address"])

    def order(self, transfer_id: str | None, chunk_seconds: float) -> None:
        """Begins to prefill a prompt."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"transfer_id": transfer_id, "chunk_seconds": chunk_seconds}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """When the last token was prefilled, and the offer."""
        line = "" if self._process.stdout is None else self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=PATIENCE_SECONDS)


class Reader:
    """The decode side: one prompt after the other into the same memory, which is wiped before each."""

    def __init__(self, engine: DecodeEngine, memory: Memory, source: Source) -> None:
        self._engine, self._memory, self._source = engine, memory, source
        self._ends: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._number = 0
        self.early_bytes = self.nbytes = 0

    def at_once(self, chunk_seconds: float) -> float:
        """Seconds from the last token to the complete cache, which is fetched when it is offered."""
        tables = self._prepare()
        self._source.order(None, chunk_seconds)
        answer = self._source.answer()
        return self._wait(self._engine.fetch(answer["params"], tables)) - answer["at"]

    def progressive(self, chunk_seconds: float) -> float:
        """The same of a cache that is followed."""
        tables, transfer_id = self._prepare(), new_transfer_id()
        fetch = self._engine.follow(transfer_id, self._source.address, tables)
        self._source.order(transfer_id, chunk_seconds)
        answer = self._source.answer()
        return self._wait(fetch) - answer["at"]

    def _prepare(self) -> dict[str, list[int]]:
        self._memory.wipe()
        self._number += 1
        return {"full": blocks("decode", self._number)}

    def _wait(self, fetch: Fetch) -> float:
        """When the fetch was delivered; raises ``RuntimeError`` where a byte did not arrive."""
        fetch.add_done_callback(lambda _: self._ends.put(boot_time()))
        ended = self._ends.get(timeout=PATIENCE_SECONDS)
        delivered = fetch.result(0)
        self.nbytes, self.early_bytes = delivered.nbytes, delivered.early_bytes
        missing = self._memory.bytes_that_are(0)
        if missing:
            raise RuntimeError(f"{missing} bytes of the target memory were not written")
        return ended


@contextmanager
def _reader() -> Iterator[Reader]:
    memory, source = Memory(layout(), fill=0), Source()
    try:
        with DecodeEngine(memory.layout, transport=NixlTransport) as engine:
            engine.connect(source.address).result(PATIENCE_SECONDS)
            yield Reader(engine, memory, source)
    finally:
        source.close()


def measure(rounds: int = ROUNDS) -> Figures:
    """Both ways in turn, after a few rounds that do not count and say how long a chunk takes to move."""
    with _reader() as reader:
        move_seconds = min(reader.at_once(0.0) for _ in range(3)) / CHUNKS
        compute_seconds = PACE * move_seconds
        reader.progressive(compute_seconds)
        measured = [(reader.at_once(compute_seconds), reader.progressive(compute_seconds)) for _ in range(rounds)]
    at_once, progressive = (1e3 * median(column) for column in zip(*measured, strict=True))
    return Figures(
        at_once, progressive, progressive / at_once, 1e3 * compute_seconds, at_once / CHUNKS, reader.nbytes,
        reader.early_bytes, CHUNKS, rounds,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.progressive", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each way (7)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    figures = measure(options.rounds)
    if options.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        document = {"schema": SCHEMA, "machine": machine, "kvweave": __version__, "meaningful": figures.meaningful}
        json.dump(document | asdict(figures), sys.stdout)
    else:
        print(_text(figures))
    return 0 if figures.meaningful else 1


def _text(figures: Figures) -> str:
    return (
        f"{figures.request_bytes / 1e6:.0f} MB in {figures.chunks} chunks, {figures.chunk_compute_ms:.1f} ms each to "
        f"compute and {figures.chunk_move_ms:.1f} ms to move\n"
        f"last token to complete cache: {figures.progressive_ms:.1f} ms progressive, {figures.at_once_ms:.1f} ms at "
        f"once: {figures.ratio:.2f} of it"
        + ("" if figures.meaningful else "\nmeaningless: a chunk takes longer to move than to compute")
    )


if __name__ == "__main__":
    sys.exit(main())
