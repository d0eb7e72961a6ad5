"""``python -m tests.soak``: ten thousand requests through real engines over NIXL that are killed and stopped meanwhile.

Two prefill and two decode engines of unequal shape, each in a process of its own, run a tiny model with a lease of two
seconds. Every answer's cache is compared with what was computed. Exits with 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.soak.faults import Wanted
from tests.soak.run import AT_ONCE, Settings, soak


def main() -> int:
    options = _options()
    folder = options.logs or Path(tempfile.mkdtemp(prefix="kvweave-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    progress, began = Console(stderr=True), time.monotonic()
    settings = Settings(
        options.requests, options.seed, Wanted(options.kills, options.stops), options.lease, options.at_once
    )
    progress.print(f"seed {settings.seed}; the engines' logs are in {folder}")
    outcome = asyncio.run(
        soak(settings, folder, lambda text: progress.print(f"[dim]{time.monotonic() - began:6.0f} s[/dim]  {text}"))
    )
    if options.json:
        json.dump(outcome.document(), sys.stdout)
    else:
        Console().print(outcome.table())
    if outcome.tally.latest_report:
        progress.print(f"the latest report: {outcome.tally.latest_report}", markup=False)
    return 0 if outcome.ok else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=20, help="how often an engine of each side is killed")
    parser.add_argument("--stops", type=int, default=4, help="how often engines of each side are stopped")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="requests under way")
    parser.add_argument("--logs", type=Path, help="where the engines' logs go")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
