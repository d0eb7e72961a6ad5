"""``python -m kvweave.testing.simulate``: runs seeds of the simulation, or replays one with its trace.

A failing seed is shrunk and printed with the line that replays it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from kvweave.testing.simulation.drawing import draw
from kvweave.testing.simulation.plants import NO_PLANT, PLANTS, Plant
from kvweave.testing.simulation.run import Outcome, shrink, simulate, simulate_seed
from kvweave.testing.simulation.scenario import Scenario
from kvweave.testing.simulation.visits import Visits, counted_visits, unvisited

SCHEMA = "kvweave.simulate/1"
"""The document of ``--json``: ``seeds``, ``first``, ``requests`` (ordinary ones of each seed), ``plant``, ``seconds``,
``steps``, ``counts``, ``visits``, ``unvisited`` and ``failures`` (seed, violation, digest)."""

_SEEDS_AT_ONCE = 20
_MOST_FAILURES_SHOWN = 5


@dataclass(slots=True)
class Tally:
    """What came of many seeds."""

    seeds: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    visits: Visits = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Takes another tally in."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.counts.update(other.counts)
        self.visits.update(other.visits)
        self.failures += other.failures


def run_seeds(seeds: Sequence[int], requests: int = 20, plant: str | None = None) -> Tally:
    """Runs these seeds in this process; ``plant`` names a planted fault."""
    tally = Tally()
    with counted_visits() as visits:
        for seed in seeds:
            outcome = simulate_seed(seed, requests, _plant(plant))
            tally.seeds += 1
            tally.steps += outcome.steps
            tally.counts.update(outcome.counts)
            if outcome.violation is not None:
                tally.failures.append(outcome)
    tally.visits.update(visits)
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _replay(options)
    started = time.monotonic()
    tally = Tally()
    for part in _parts(options):
        tally.add(part)
        _show_progress(options, tally, time.monotonic() - started)
        if tally.failures and options.plant:
            break
    seconds = time.monotonic() - started
    _say(json.dumps(_document(options, tally, seconds)) if options.json else _report(options, tally, seconds))
    return 1 if tally.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m kvweave.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--requests", type=int, default=20, help="ordinary requests of each seed (default 20)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--plant", choices=list(PLANTS), help="leave one check of the protocol out")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _plant(name: str | None) -> Plant:
    return NO_PLANT if name is None else PLANTS[name]


def _parts(options: argparse.Namespace) -> Iterator[Tally]:
    seeds = range(options.first, options.first + options.seeds)
    parts = [seeds[start : start + _SEEDS_AT_ONCE] for start in range(0, len(seeds), _SEEDS_AT_ONCE)]
    if options.jobs == 1:
        for part in parts:
            yield run_seeds(part, options.requests, options.plant)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        pending = [pool.submit(run_seeds, part, options.requests, options.plant) for part in parts]
        try:
            for future in pending:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _show_progress(options: argparse.Namespace, tally: Tally, seconds: float) -> None:
    """On a terminal all the time, in a log once in a thousand seeds."""
    text = f"{tally.seeds} of {options.seeds} seeds, {tally.seeds / seconds:.1f} a second, {len(tally.failures)} failed"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text} ")
    elif tally.seeds % 1000 < _SEEDS_AT_ONCE:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _replay(options: argparse.Namespace) -> int:
    scenario, plant = draw(options.seed, options.requests), _plant(options.plant)
    outcome = simulate(scenario, plant, traced=True)
    if options.json:
        _say(json.dumps({"schema": SCHEMA, **_failure(outcome), "trace": outcome.trace}))
    else:
        _say("\n".join(outcome.trace))
        _say(f"\n{outcome.violation or 'every rule held'} (digest {outcome.digest})")
        if outcome.violation is not None:
            _say(describe(shrink(scenario, plant)))
    return 0 if outcome.violation is None else 1


def _report(options: argparse.Namespace, tally: Tally, seconds: float) -> str:
    lines = [f"{amount:>10}  {name}" for name, amount in sorted(tally.counts.items())]
    missing = [f"{table}: {event} while {state}" for table, state, event in unvisited(tally.visits)]
    lines.append("every entry of the tables was visited" if not missing else "not visited: " + "; ".join(missing))
    requests = tally.seeds * options.requests
    followed = f"{tally.counts['followed']} that are followed"
    lines.append(f"{tally.seeds} seeds, {requests} requests and {followed}, {tally.steps} steps in {seconds:.1f} s")
    for outcome in tally.failures[:_MOST_FAILURES_SHOWN]:
        scenario = shrink(draw(outcome.seed, options.requests), _plant(options.plant))
        again = simulate(scenario, _plant(options.plant)).violation
        lines += [
            "", f"seed {outcome.seed} fails: {outcome.violation}", f"shrunk: {again}", describe(scenario),
            f"replay: {replay_line(outcome.seed, options.requests, options.plant)}",
        ]  # fmt: skip
    lines.append(f"{len(tally.failures)} seeds failed" if tally.failures else "every rule held")
    return "\n".join(lines)


def replay_line(seed: int, requests: int = 20, plant: str | None = None) -> str:
    """The command that runs a seed again.

    >>> replay_line(7, plant="grant")
    'python -m kvweave.testing.simulate --seed 7 --plant grant'
    """
    words = ["python -m kvweave.testing.simulate", f"--seed {seed}"]
    words += [f"--requests {requests}"] if requests != 20 else []
    words += [f"--plant {plant}"] if plant else []
    return " ".join(words)


def describe(scenario: Scenario) -> str:
    """A scenario in one line a thing."""
    lines = [f"  prefill {shape}" for shape in scenario.prefill] + [f"  decode {shape}" for shape in scenario.decode]
    lines += [f"  {plan}" for plan in scenario.requests] + [f"  {fault}" for fault in scenario.faults]
    return "\n".join([*lines, f"  {scenario.weather}", f"  lease {scenario.lease_seconds} s, {scenario.timing}"])


def _document(options: argparse.Namespace, tally: Tally, seconds: float) -> dict[str, object]:
    return {
        "schema": SCHEMA, "seeds": tally.seeds, "first": options.first, "requests": options.requests,
        "plant": options.plant, "seconds": seconds, "steps": tally.steps, "counts": dict(sorted(tally.counts.items())),
        "visits": {" ".join(entry): amount for entry, amount in sorted(tally.visits.items())},
        "unvisited": [" ".join(entry) for entry in unvisited(tally.visits)],
        "failures": [_failure(outcome) for outcome in tally.failures],
    }  # fmt: skip


def _failure(outcome: Outcome) -> dict[str, object]:
    return {"seed": outcome.seed, "violation": outcome.violation, "digest": outcome.digest}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
