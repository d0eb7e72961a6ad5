"""Requests at a constant number at once, through engines that die meanwhile; what became of each of them.

A request is computed by one prefill engine and answered by one decode engine, drawn among those that are up: nobody
tells the load that one stands still. How late a failure is reported counts from when the request came to the decode
engine, or from what was last done to one of its two engines: from a prefill engine's stop on, but from a decode
engine's continuation, since it says nothing before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.soak.engines import Engine, EngineEnded

PROMPT_TOKENS = (20, 120)
LOST_SECONDS = 60.0
"""A request that has not ended by then never will."""

ANSWERED, WRONG, LOST, ENDED = "answered", "wrong bytes", "never ended", "engine killed"


@dataclass
class Tally:
    """What became of the requests: by outcome, and the failure that was reported last after its cause."""

    outcomes: Counter[str] = field(default_factory=Counter)
    latest_report_seconds: float = 0.0
    latest_report: str = ""
    answer_seconds: list[float] = field(default_factory=list)

    def fail(self, reason: str, late_seconds: float, text: str) -> None:
        self.outcomes[reason] += 1
        if late_seconds > self.latest_report_seconds:
            self.latest_report_seconds, self.latest_report = late_seconds, f"{reason}: {text}"


@dataclass
class Load:
    """``harmed`` says when something was last done to an engine, in seconds of the monotonic clock."""

    prefill: Sequence[Engine]
    decode: Sequence[Engine]
    seed: int
    begun: int = 0
    tally: Tally = field(default_factory=Tally)
    harmed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._changed = asyncio.Condition()

    async def send(self, until: int, at_once: int, also_until: asyncio.Event | None = None) -> None:
        """Sends requests until so many have begun since the start, and longer until the event is set."""

        async def worker() -> None:
            while self.begun < until or (also_until is not None and not also_until.is_set()):
                await self._request()

        await asyncio.gather(*(worker() for _ in range(at_once)))

    async def reached(self, begun: int) -> None:
        """Waits until so many requests have begun."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.begun >= begun)

    async def _request(self) -> None:
        self.begun += 1
        async with self._changed:
            self._changed.notify_all()
        prompt = [self._chance.randrange(250) for _ in range(self._chance.randint(*PROMPT_TOKENS))]
        source, target = self._one_of(self.prefill), self._one_of(self.decode)
        began = time.monotonic()
        try:
            offered = await asyncio.wait_for(source.ask({"prompt": prompt}), LOST_SECONDS)
            if "failed" not in offered:
                began = time.monotonic()
                question = {"prompt": prompt, "params": offered["params"]}
                answered = await asyncio.wait_for(target.ask(question), LOST_SECONDS)
        except EngineEnded as ended:
            self.tally.fail(ENDED, time.monotonic() - max(began, self.harmed.get(str(ended), 0.0)), str(ended))
        except TimeoutError:
            self.tally.fail(LOST, LOST_SECONDS, f"{source.name} to {target.name}")
        else:
            self._judge(offered, offered if "failed" in offered else answered, began, (source, target))

    def _judge(
        self, offered: Mapping[str, Any], said: Mapping[str, Any], began: float, pair: tuple[Engine, Engine]
    ) -> None:
        now = time.monotonic()
        if "failed" in said:
            since = max(began, *(self.harmed.get(engine.name, 0.0) for engine in pair))
            self.tally.fail(said["failed"], now - since, f"{pair[0].name} to {pair[1].name}: {said['text']}")
        elif said["checksum"] != offered["checksum"] or not said["tokens"]:
            self.tally.outcomes[WRONG] += 1
        else:
            self.tally.outcomes[ANSWERED] += 1
            self.tally.answer_seconds.append(now - began)

    def _one_of(self, engines: Sequence[Engine]) -> Engine:
        up = [engine for engine in engines if engine.up.is_set()]
        assert up, f"none is up of {[engine.name for engine in engines]}; the first is never killed"
        return self._chance.choice(up)
