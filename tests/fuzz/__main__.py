"""``python -m tests.fuzz --minutes 10``: half of the time for the decoders, half for engines at work.

Prints what was fed and how the memory grew; exits with 1 when something came out that must not. Faults are written to
``--keep`` as files of the corpus.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from kvweave.protocol.offer import REMEMBERED_OFFERS
from tests.fuzz.decoders import Result, drawn, feed
from tests.fuzz.live import Hostile, Told, harass, serve
from tests.fuzz.targets import targets
from tests.runtime.pair import joined

ROUND = 500
MOST_GROWTH = 1.10


def resident_bytes() -> int:
    """This process's memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def feed_decoders(seconds: float, seed: int) -> list[Result]:
    chosen = list(targets())
    results = [Result(target.name) for target in chosen]
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for target, result in zip(chosen, results, strict=True):
            feed(target, drawn(target, seed, ROUND), result)
        seed += 1
    return results


def feed_engines(seconds: float, seed: int) -> tuple[Told, list[int]]:
    """The engines' part, and the memory after each tenth of it."""
    told, memory = Told(), []
    with joined() as pair:
        for number in range(REMEMBERED_OFFERS):
            pair.prefill.withdraw(pair.offer(f"earlier {number}"))
        for part in range(10):
            hostile = Hostile(seed + part)
            harass(pair, hostile, seconds / 10, told)
            hostile.close()
            serve(pair, f"after part {part}", told)
            memory.append(resident_bytes())
        totals = {f"{name} {label}".strip(): amount for (name, label), amount in pair.prefill.metrics().totals.items()}
        print("prefill engine:", ", ".join(f"{amount:,.0f} {name}" for name, amount in sorted(totals.items())))
    return told, memory


def keep(folder: Path, results: list[Result]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        for number, (data, fault) in enumerate(result.faults):
            (folder / f"{result.name.replace(' ', '-')}.{number}").write_bytes(data)
            print(f"FAULT in {result.name}:\n{fault}")
    return sum(len(result.faults) for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"))
    given = parser.parse_args()
    logging.getLogger("kvweave").setLevel(logging.CRITICAL)
    print(f"seed {given.seed}")
    results = feed_decoders(30 * given.minutes, given.seed)
    for result in results:
        slowest = f"slowest {result.slowest_seconds:.3f} s"
        print(f"{result.name:14} {result.inputs:9,} inputs, {result.taken:8,} taken, {slowest}")
    faults = keep(given.keep, results) if any(result.faults for result in results) else 0
    told, memory = feed_engines(30 * given.minutes, given.seed)
    print(f"engines: {told.messages:,} messages, {told.connections:,} connections, {told.requests:,} requests right")
    print(f"memory: {', '.join(f'{amount / 2**20:.0f}' for amount in memory)} MiB")
    growth = memory[-1] / memory[len(memory) // 3]
    print(f"{faults} faults, memory after the first third times {growth:.3f}")
    sys.exit(1 if faults or growth > MOST_GROWTH else 0)


if __name__ == "__main__":
    main()
