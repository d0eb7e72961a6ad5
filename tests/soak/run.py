"""One soak: warm-up, faults under load, a quiet end; then everything is counted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.engines import Engine
from tests.soak.faults import SIDES, Fault, Wanted, draw
from tests.soak.footprint import Footprint
from tests.soak.load import Load
from tests.soak.verdict import Memory, Outcome

WARM_PART, QUIET_PART = 0.1, 0.1
AT_ONCE = 12
PATIENCE_SECONDS = 10.0
PROGRESS_SECONDS = 10.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for."""

    requests: int = 10_000
    seed: int = 0
    wanted: Wanted = field(default_factory=Wanted)
    lease_seconds: float = 2.0
    at_once: int = AT_ONCE


async def soak(settings: Settings, logs: Path, tell: Tell) -> Outcome:
    """Runs it; every process that it starts ends with it."""
    started = time.monotonic()
    prefill, decode = ([Engine(f"{side}-{n}", side, settings.lease_seconds, logs) for n in range(2)] for side in SIDES)
    engines = [*prefill, *decode]
    async with AsyncExitStack() as stack:
        for engine in engines:
            stack.push_async_callback(engine.end)
        await engines[0].start()  # it makes the model, where there is none yet
        await asyncio.gather(*(engine.start() for engine in engines[1:]))
        tell(f"{len(engines)} engines are up after {time.monotonic() - started:.0f} s")
        load = Load(prefill, decode, settings.seed)
        progress = asyncio.create_task(_show_progress(load, settings.requests, tell))
        stack.callback(progress.cancel)
        first, last = (int(settings.requests * part) for part in (WARM_PART, 1 - QUIET_PART))
        await load.send(first, settings.at_once)
        before = _footprints(engines)
        faults = draw(settings.seed, first, last, settings.wanted, settings.lease_seconds)
        await _send_under_faults(load, engines, faults, last, settings.at_once, tell)
        await load.send(load.begun + settings.requests - last, settings.at_once)
        seconds = time.monotonic() - started
        patience = settings.lease_seconds + PATIENCE_SECONDS
        left = {engine.name: (await engine.ask({"blocks_within": patience}))["blocks"] for engine in engines}
        after = _footprints(engines)
    memory = tuple(Memory(name, before[name], after[name]) for name in before)
    return Outcome(load.begun, load.tally, faults, left, memory, seconds, settings.lease_seconds, first)


async def _send_under_faults(
    load: Load, engines: Sequence[Engine], faults: Sequence[Fault], last: int, at_once: int, tell: Tell
) -> None:
    """Each engine's faults happen one after the other, whatever the others' do; the load lasts until all are over."""
    over = asyncio.Event()

    async def all_faults() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for engine in engines:
                    mine = [fault for fault in faults if fault.engine == engine.name]
                    group.create_task(_harm(load, engine, mine, tell))
        finally:
            over.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(all_faults())
        group.create_task(load.send(last, at_once, over))


async def _harm(load: Load, engine: Engine, faults: Sequence[Fault], tell: Tell) -> None:
    for fault in faults:
        await load.reached(fault.at_request)
        load.harmed[engine.name] = time.monotonic()
        if fault.stopped_seconds is None:
            await engine.kill()
            await engine.start()
            tell(f"{engine.name} was killed and replaced in {time.monotonic() - load.harmed[engine.name]:.1f} s")
            continue
        engine.send(signal.SIGSTOP)
        await asyncio.sleep(fault.stopped_seconds)
        if engine.name.startswith(SIDES[1]):
            load.harmed[engine.name] = time.monotonic()
        engine.send(signal.SIGCONT)
        tell(f"{engine.name} stood still for {fault.stopped_seconds:.1f} s")


async def _show_progress(load: Load, requests: int, tell: Tell) -> None:
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        counted = ", ".join(f"{amount} {outcome}" for outcome, amount in load.tally.outcomes.most_common())
        tell(f"{load.begun:,} of {requests:,} requests: {counted}")


def _footprints(engines: Sequence[Engine]) -> dict[str, Footprint]:
    return {engine.name: engine.footprint for engine in engines} | {"load": Footprint.now()}
