"""A prefill server that is killed and restarted under load: ``python -m tests.e2e.vllm.restarts [--kills 5]``.

Requests go on all the time, a constant number at once, some of them with a pause between the two servers, as a busy
proxy makes. After each restart the prefill server has the control port that it had before. Every answer is compared
with what the decode server answers by itself, and the decode server must be the same process at the end. Whether a
request whose cache was lost is computed at the decode side or ends with an error is vLLM's ``--policy``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.e2e.vllm.check import Report, compare, reference
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import Answer, complete, metrics, prefill, together
from tests.e2e.vllm.servers import Progress, Server, deploy, free_port, kvweave, start, wait_healthy

MAX_TOKENS = 8
AT_ONCE = 6
LENGTHS = (40, 90, 200, 400, 700)
PROMPTS = 20
LEASE_SECONDS = 10.0
MOST_PAUSE_SECONDS = 1.0
REPORT_SECONDS = 40.0
"""A lost cache is noticed and the answer computed, or the error told, within this time on a machine that is busy."""
WAIT_SECONDS = 300.0
BETWEEN_KILLS = 40
"""Requests that end between a restart and the next kill."""


@dataclass(frozen=True)
class Restarted:
    """What came of it. ``slowest_seconds`` is the decode side's slowest answer or error."""

    kills: int
    outcomes: dict[str, int]
    lost_loads: int
    wrong: int
    slowest_seconds: float
    same_decode_server: bool
    first_error: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.wrong and self.same_decode_server and self.slowest_seconds <= REPORT_SECONDS


@dataclass
class Traffic:
    """Requests from many threads through a prefill server that may be away, and what became of each."""

    decode: Server
    prompts: Sequence[list[int]]
    up: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    source: Server | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    answered: list[tuple[int, Answer]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    first_error: str = ""

    def __post_init__(self) -> None:
        self._chance = random.Random(1)
        self._counting = threading.Condition()

    @property
    def ended(self) -> int:
        return sum(self.outcomes.values())

    def run(self) -> None:
        """Requests one after the other until it is over."""
        while not self.over.is_set():
            if self.up.wait(0.2) and self.source is not None:
                self._request(self.source)

    def wait_for(self, ended: int) -> None:
        """Waits until so many requests have ended; raises ``TimeoutError`` when they do not."""
        with self._counting:
            if not self._counting.wait_for(lambda: self.ended >= ended, WAIT_SECONDS):
                raise TimeoutError(f"{self.ended} requests ended, {ended} were expected: {dict(self.outcomes)}")

    def _request(self, source: Server) -> None:
        with self._counting:
            number, salt = self._chance.randrange(len(self.prompts)), str(self._chance.random())
            pause = self._chance.choice((0.0, self._chance.uniform(0.0, MOST_PAUSE_SECONDS)))
        offered = prefill(source.url, self.prompts[number], cache_salt=salt)
        if offered.status != 200:
            self._count("not prefilled", number, offered, 0.0)
            return
        time.sleep(pause)
        began = time.monotonic()
        answer = complete(
            self.decode.url, self.prompts[number], MAX_TOKENS, kv_transfer_params=offered.params, cache_salt=salt
        )
        outcome = "answered" if answer.status == 200 else f"HTTP {answer.status}"
        self._count(outcome, number, answer, time.monotonic() - began)

    def _count(self, outcome: str, number: int, answer: Answer, seconds: float) -> None:
        with self._counting:
            self.outcomes[outcome] += 1
            self.slowest_seconds = max(self.slowest_seconds, seconds)
            if answer.status == 200:
                self.answered.append((number, answer))
            else:
                self.first_error = self.first_error or f"{outcome}: {answer.error[:300]}"
            self._counting.notify_all()


def restart_under_load(
    models: Path, logs: Path, kills: int = 5, policy: str = "recompute", progress: Progress = print
) -> Restarted:
    """Starts a pair, kills and restarts its prefill server so many times, and compares every answer."""
    began = time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    folder = served_model("llama", models)
    giving = kvweave("kv_producer", kv_lease_duration=LEASE_SECONDS, port=free_port())
    source = start(deploy("prefill", "llama", folder, "tp=1,block=64", giving), logs)
    decode = start(deploy("decode", "llama", folder, "tp=1,block=32", kvweave("kv_consumer", policy)), logs)
    servers = [decode, source]
    try:
        for server in servers:
            wait_healthy(server, progress)
        prompts = [prompt_of(LENGTHS[number % len(LENGTHS)], seed=number) for number in range(PROMPTS)]
        wanted = together([partial(reference, decode.url, prompt, MAX_TOKENS) for prompt in prompts])
        traffic = Traffic(decode, prompts)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            sending = [pool.submit(traffic.run) for _ in range(AT_ONCE)]
            try:
                _kill_and_restart(traffic, servers, kills, logs, progress)
            finally:
                traffic.over.set()
            for worker in sending:
                worker.result()
        report = _compared(traffic, wanted)
        progress(str(report))
        return Restarted(
            kills, dict(traffic.outcomes), _lost_loads(decode), len(report.wrong), traffic.slowest_seconds,
            decode.process.poll() is None and decode.healthy(), traffic.first_error, time.monotonic() - began,
        )  # fmt: skip
    finally:
        for server in servers:
            server.end()


def _kill_and_restart(traffic: Traffic, servers: list[Server], kills: int, logs: Path, progress: Progress) -> None:
    """Kills the prefill server, which is the last of ``servers``, and starts its successor, so many times."""
    for number in range(1, kills + 2):
        source = traffic.source = servers[-1]
        traffic.up.set()
        traffic.wait_for(traffic.ended + BETWEEN_KILLS)
        if number > kills:
            return
        traffic.up.clear()
        os.killpg(source.process.pid, signal.SIGKILL)
        source.end()
        progress(f"kill {number} of {kills}: {dict(traffic.outcomes)}")
        servers.append(start(source.deployment, logs))
        wait_healthy(servers[-1], progress)


def _compared(traffic: Traffic, wanted: Sequence[Answer]) -> Report:
    got = traffic.answered
    return compare([traffic.prompts[number] for number, _ in got], [wanted[number] for number, _ in got],
                   [answer for _, answer in got])  # fmt: skip


def _lost_loads(decode: Server) -> int:
    """Loads that the decode server counts as failed."""
    found = metrics(decode.url)
    return int(sum(value for name, value in found.items() if name.startswith("vllm:kvweave_failed_total")))


def table(found: Restarted) -> Table:
    shown = Table("", "found", title=f"Prefill server killed and restarted {found.kills} times under load")
    for outcome, amount in found.outcomes.items():
        shown.add_row(outcome, f"{amount:,}")
    for what, value in (
        ("loads that failed at the decode side", found.lost_loads), ("wrong tokens", found.wrong),
        ("slowest answer or error of the decode side", f"{found.slowest_seconds:.1f} s (limit {REPORT_SECONDS:g} s)"),
        ("same decode server throughout", "yes" if found.same_decode_server else "NO"),
        ("took", f"{found.seconds:.0f} s"),
    ):  # fmt: skip
        shown.add_row(what, str(value))
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.vllm.restarts", description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--policy", choices=["recompute", "fail"], default="recompute")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "kvweave-e2e")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stated = os.environ.get("KVWEAVE_E2E_MODELS")
    models = Path(stated) if stated else options.folder / "models"
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    found = restart_under_load(models, options.folder / "restarts", options.kills, options.policy, console.print)
    document: dict[str, Any] = {"schema": "kvweave.e2e.restarts/1", "ok": found.ok, **asdict(found)}
    if options.json:
        print(json.dumps(document))
    else:
        Console().print(table(found))
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
