"""All replicas against one, on links of limited rate: ``python -m bench.striping [--json]``. Needs root.

DeepSeek-V3's cache on four prefill ranks (tp 4), all of which hold all of it, each rank a process on a host of its own
behind a link of its own, and four decode engines of tp 1 on hosts of their own that fetch at the same moment. Compared
is what they read together in a second from all ranks with what they read from rank 0 alone, which is whom every one of
them would ask by the ratio of tp sizes (NixlConnector's mapping). The hosts are network namespaces of this machine, the
bytes go over TCP (``bench.namespaces``); every byte is compared after each run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.namespaces import CannotRun, Network, close
from bench.striping_engine import BLOCK, MODEL, RANKS, WAYS
from kvweave.version import __version__

SCHEMA = "kvweave.bench.striping/1"
ENGINES = 4
CASES = {"large": 1, "small": 8}
"""Into how many requests at once each engine's bytes are divided: one in stripes, or many that are each read whole."""
AHEAD_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Run:
    """What all engines read at once: together in a second, and from each rank."""

    bytes_per_second: float
    bytes_from: Counter[int]


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of one case: bytes per second of all engines together, and their ratio.

    ``shares`` are the bytes that each source gave, of the last run, as parts of all.
    """

    case: str
    requests: int
    request_bytes: int
    all_bytes_per_second: float
    one_bytes_per_second: float
    ratio: float
    shares: tuple[float, ...]

    @staticmethod
    def of(case: str, runs: Mapping[str, Sequence[Run]]) -> Figures:
        """From the runs over each way."""
        rates = {way: statistics.median(run.bytes_per_second for run in some) for way, some in runs.items()}
        last = runs["all"][-1].bytes_from
        shares = tuple(last[source] / last.total() for source in range(RANKS))
        nbytes = last.total() // ENGINES // CASES[case]
        return Figures(case, CASES[case], nbytes, rates["all"], rates["one"], rates["all"] / rates["one"], shares)


class Drive:
    """The processes on their hosts, and the runs that they do together."""

    def __init__(self, network: Network, blocks: int, megabits: int, engines: int = ENGINES) -> None:
        size = {"blocks": blocks}
        self._ranks = [_start(network, f"prefill{number}", megabits, "rank", size) for number in range(RANKS)]
        found = [_heard(process) for process in self._ranks]
        host = network.add("control")
        options = {**size, "address": host.address, "subnet": network.subnet}
        self._control = network.start(host, "bench.striping_engine", "control", json.dumps(options))
        _tell(self._control, ranks=found)
        addresses = _heard(self._control)["addresses"]
        self._engines = [
            _start(network, f"decode{number}", None, "decode", {**size, "addresses": addresses})
            for number in range(engines)
        ]
        for process in self._engines:
            _heard(process)

    def run(self, way: str, requests: int) -> Run:
        """All engines at once, over one way; raises ``RuntimeError`` where a byte is wrong."""
        orders = []
        for _ in self._engines:
            _tell(self._control, way=way, requests=requests)
            orders.append(_heard(self._control)["references"])
        start = time.monotonic() + AHEAD_SECONDS
        for process, references in zip(self._engines, orders, strict=True):
            _tell(process, references=references, start=start)
        ended = [_heard(process) for process in self._engines]
        wrong = sum(one["wrong_bytes"] for one in ended)
        if wrong:
            raise RuntimeError(f"{way}: {wrong} bytes are not those of the source")
        bytes_from = Counter[int]()
        for one in ended:
            bytes_from.update({int(source): nbytes for source, nbytes in one["bytes_from"].items()})
        seconds = max(one["ended"] for one in ended) - start
        return Run(bytes_from.total() / seconds, bytes_from)

    def close(self) -> None:
        for process in (*self._engines, self._control, *self._ranks):
            close(process)


def _start(
    network: Network, name: str, megabits: int | None, role: str, options: Mapping[str, Any]
) -> subprocess.Popen[str]:
    return network.start(network.add(name, megabits), "bench.striping_engine", role, json.dumps(options))


def _tell(process: subprocess.Popen[str], **record: Any) -> None:
    if process.stdin is not None:
        process.stdin.write(json.dumps(record) + "\n")
        process.stdin.flush()


def _heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise RuntimeError(f"a process of the bench has ended: {process.args}")
    found: dict[str, Any] = json.loads(line)
    return found


def measure(runs: int, blocks: int, megabits: int) -> Iterator[Figures]:
    """The figures of each case: the ways take turns, the first run of each counts for nothing.

    Raises ``CannotRun`` where this machine has no such network.
    """
    with Network() as network, closing(Drive(network, blocks, megabits)) as drive:
        for case, requests in CASES.items():
            found: dict[str, list[Run]] = {way: [] for way in WAYS}
            for _ in range(runs + 1):
                for way, earlier in found.items():
                    earlier.append(drive.run(way, requests))
            yield Figures.of(case, {way: runs[1:] for way, runs in found.items()})


def main() -> int:
    options, measured = _options(), []
    progress = Console(stderr=True)
    try:
        for figures in measure(options.runs, options.blocks, options.megabits):
            progress.print(f"[dim]{figures.case}: {figures.ratio:.2f} times[/dim]")
            measured.append(figures)
    except CannotRun as error:
        progress.print(f"striping cannot be measured here: {error}", markup=False)
        return 2
    if options.json:
        json.dump(_document(options, measured), sys.stdout)
    else:
        Console().print(_table(options, measured))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.striping", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of which the median counts (3)")
    parser.add_argument("--blocks", type=int, default=8, help=f"of {BLOCK} tokens that each engine reads in a run (8)")
    parser.add_argument("--megabits", type=int, default=100, help="a second of each prefill rank's link (100)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


def _document(options: argparse.Namespace, measured: Sequence[Figures]) -> Mapping[str, Any]:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "schema": SCHEMA, "machine": machine, "kvweave": __version__, "model": MODEL, "megabits": options.megabits,
        "figures": [asdict(one) for one in measured],
    }  # fmt: skip


def _table(options: argparse.Namespace, measured: Sequence[Figures]) -> Table:
    title = f"{MODEL}, tp {RANKS} to {ENGINES} engines of tp 1, {options.megabits} Mbit a prefill rank"
    table = Table("requests of each engine", "all replicas MB/s", "rank 0 alone MB/s", "ratio", "shares", title=title)
    for one in measured:
        requests = f"{one.requests} of {one.request_bytes / 1e6:.1f} MB"
        shares = " ".join(f"{share:.3f}" for share in one.shares)
        rates = (f"{rate / 1e6:.1f}" for rate in (one.all_bytes_per_second, one.one_bytes_per_second))
        table.add_row(requests, *rates, f"{one.ratio:.2f}", shares)
    return table


if __name__ == "__main__":
    sys.exit(main())
