"""All ways of reading pieces in random order from a process of this machine: ``python -m bench.staging [--json]``.

Two processes over NIXL on this machine: one has the cache of 61 layers, the other one reads the blocks of a request, in
pieces of 4 to 256 KB at random places on both sides, and in those of 256 bytes of which a head split consists where
both sides keep tokens before heads, 64 MB each, and in one piece. Each is read by NIXL piece by piece (direct), by the
system's own copies of many pieces (copied), staged, and as the cost model chooses, in turns; the shortest time of
several counts.
With ``--elsewhere`` the source counts as one of another machine: the system copies nothing, and no ring is mapped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kvweave.benchmarks.effort import in_turns
from kvweave.benchmarks.ways import Way, transport_factory
from kvweave.core.layout import Region
from kvweave.transport.base import ReadHandle, ReadRows, ReadState
from kvweave.transport.nixl import NixlTransport
from kvweave.version import __version__

SCHEMA = "kvweave.bench.staging/2"
LAYERS = 61
LAYER_BYTES = 10 << 20
PIECES = (4 << 10, 16 << 10, 64 << 10, 256 << 10)
REQUEST_BYTES = 64 << 20
REPEATS = 8
SERVING_SECONDS = 0.0002
"""How long an engine sleeps between two looks while a peer may be reading."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Gigabytes per second of one kind of pieces, by the way in which they were read."""

    pieces: str
    nbytes: int
    rows: int
    direct: float
    copied: float
    staged: float
    auto: float

    @property
    def gain(self) -> float:
        """How many times as fast as direct staged is."""
        return self.staged / self.direct

    @property
    def choice(self) -> float:
        """The speed of the choice by that of the best way."""
        return self.auto / max(self.direct, self.copied, self.staged)


@dataclass(frozen=True, slots=True)
class Places:
    """Rows of one kind in each of so many layers, as offsets into a layer's memory on either side."""

    name: str
    source: np.ndarray
    target: np.ndarray
    nbytes: np.ndarray
    layers: int = LAYERS

    def rows(self, source: int, target: int) -> ReadRows:
        """Those of all layers, as an engine has them, between two addresses."""
        layers = np.arange(self.layers, dtype=np.uint64) * np.uint64(LAYER_BYTES)
        pattern = ReadRows(self.source, self.target, self.nbytes)
        return ReadRows.repeated(layers + np.uint64(source), layers + np.uint64(target), pattern)


def all_places() -> Iterator[Places]:
    """What is read, one kind after the other."""
    for size in PIECES:
        yield _random_blocks(f"{size >> 10} KB", size, REQUEST_BYTES)
    yield _head_split()
    whole = np.zeros(1, np.uint64)
    yield Places("256 MB in one", whole, whole, np.full(1, 256 << 20, np.uint64), layers=1)


def _random_blocks(name: str, size: int, total: int) -> Places:
    """Blocks of a request at random places on both sides, the same ones in every layer."""
    dice = np.random.default_rng(size)
    count = max(1, total // size // LAYERS)
    source, target = (
        dice.permutation(LAYER_BYTES // size)[:count].astype(np.uint64) * np.uint64(size) for _ in range(2)
    )
    return Places(name, source, target, np.full(count, size, np.uint64))


def _head_split() -> Places:
    """One head of 128 elements of 2 bytes: from 8 heads a token at the source, one of 2 at the target, 16 a block."""
    blocks = _random_blocks("", 16 * 8 * 256, 8 * REQUEST_BYTES)
    token = np.arange(16, dtype=np.uint64)
    return Places(
        "head split, NHD",
        (blocks.source[:, None] + token * np.uint64(8 * 256)).ravel(),
        (blocks.target[:, None] // np.uint64(4) + token * np.uint64(2 * 256)).ravel(),
        np.full(16 * len(blocks.source), 256, np.uint64),
    )


class Reader:
    """The reading side, connected once for each way; the source may count as one of another machine."""

    def __init__(self, address: int, agent_data: bytes, elsewhere: bool) -> None:
        self._address = address
        self._memory = np.full(LAYERS * LAYER_BYTES, 2, np.uint8)
        settings = {"same_host": False} if elsewhere else {}
        self._transports = {way: transport_factory(way)(f"reader-{way}", **settings) for way in Way}
        self._peers = {}
        for way, transport in self._transports.items():
            transport.register([Region(self._memory.ctypes.data, self._memory.nbytes)])
            handle = transport.connect(agent_data)
            self._finish(way, handle)
            self._peers[way] = handle.peer

    def seconds(self, way: Way, places: Places) -> float:
        """How long reading them took."""
        rows = places.rows(self._address, self._memory.ctypes.data)
        begun = time.perf_counter()
        self._finish(way, self._transports[way].read(self._peers[way], rows))
        return time.perf_counter() - begun

    def close(self) -> None:
        """Ends the transports."""
        for transport in self._transports.values():
            transport.close()

    def _finish(self, way: Way, handle: ReadHandle) -> None:
        while not handle.state.terminal:
            self._transports[way].progress()
            time.sleep(0)
        if handle.state is not ReadState.DONE:
            raise RuntimeError(f"{way}: {handle}")


def _serve(connection: Connection) -> None:
    memory = np.ones(LAYERS * LAYER_BYTES, np.uint8)
    transport = NixlTransport("source", "auto")
    transport.register([Region(memory.ctypes.data, memory.nbytes)])
    connection.send((memory.ctypes.data, transport.agent_data()))
    while not connection.poll(0):
        transport.progress()
        time.sleep(SERVING_SECONDS)
    transport.close()


@contextmanager
def reader(elsewhere: bool = False) -> Iterator[Reader]:
    """A reader and its source."""
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    source = processes.Process(target=_serve, args=(theirs,), daemon=True)
    source.start()
    made = Reader(*ours.recv(), elsewhere)
    try:
        yield made
    finally:
        made.close()
        ours.send(None)
        source.join()


def measure(
    repeats: int = REPEATS, chosen: Iterable[Places] | None = None, elsewhere: bool = False
) -> Iterator[Figures]:
    """The figures of the chosen kinds, all unless some are named."""
    with reader(elsewhere) as made:
        ways = list(Way)
        for places in all_places() if chosen is None else chosen:
            contenders = {way.value: lambda way=way, places=places: made.seconds(way, places) for way in ways}
            times = in_turns(contenders, repeats)
            rows = places.rows(0, 0)
            nbytes = rows.total_bytes
            rate = {way: nbytes / min(found) / 1e9 for way, found in times.items()}
            yield Figures(
                places.name, nbytes, len(rows), rate[Way.DIRECT], rate[Way.COPIED], rate[Way.STAGED],
                rate[Way.AUTO],
            )  # fmt: skip


def document(figures: list[Figures]) -> dict[str, Any]:
    """The figures as one document."""
    machine = {"python": platform.python_version(), "machine": platform.machine(), "kvweave": __version__}
    described = [asdict(one) | {"gain": one.gain, "choice": one.choice} for one in figures]
    return {"schema": SCHEMA, "machine": machine, "figures": described}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.staging", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="times that each is read in each way")
    parser.add_argument("--elsewhere", action="store_true", help="read as from another machine, by NIXL alone")
    arguments = parser.parse_args()
    progress = Console(stderr=True)
    figures = []
    for one in measure(arguments.repeats, elsewhere=arguments.elsewhere):
        progress.print(f"[dim]measured {one.pieces}[/dim]")
        figures.append(one)
    if arguments.json:
        json.dump(document(figures), sys.stdout)
        return
    table = Table(
        "pieces", "rows", "direct GB/s", "copied GB/s", "staged GB/s", "staged/direct", "auto GB/s", "auto/best"
    )
    for one in figures:
        numbers = (one.direct, one.copied, one.staged, one.gain, one.auto, one.choice)
        table.add_row(one.pieces, str(one.rows), *(f"{number:.2f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
