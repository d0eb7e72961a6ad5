"""Engine processes as the load sees them: started, asked, killed, stopped, continued, measured."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.soak.footprint import Footprint

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0
END_SECONDS = 30.0


class EngineEnded(Exception):
    """The process has ended before it answered."""


class Engine:
    """One place for an engine, ``name`` in reports; its process is replaced when it was killed.

    ``up`` is set while a process is there that has said where it listens. A stopped process is up.
    """

    def __init__(self, name: str, arguments: Sequence[str], logs: Path) -> None:
        self.name = name
        self.up = asyncio.Event()
        self._arguments = list(arguments)
        self._log = logs / f"{name}.log"
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def footprint(self) -> Footprint:
        """What its process holds."""
        return Footprint.now(self.process_id)

    async def start(self) -> None:
        """Starts a process and waits until it serves; raises ``EngineEnded`` when it does not."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.soak.engine_process", *self._arguments, cwd=ROOT, stderr=log,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 20,
            )  # fmt: skip
        output = self._process.stdout
        assert output is not None
        first = await asyncio.wait_for(output.readline(), START_SECONDS)
        if not first:
            raise EngineEnded(f"{self.name} did not start; its log ends:\n{self._log.read_text()[-2000:]}")
        if self._arguments[0] == "prefill":
            self._arguments[1] = json.loads(first)["address"]
        self._reading = asyncio.create_task(self._read(output))
        self.up.set()

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer; raises ``EngineEnded`` when it ends before."""
        process, number = self._process, next(self._numbers)
        if process is None or process.stdin is None or not self.up.is_set():
            raise EngineEnded(self.name)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
        return await answer

    def send(self, number: signal.Signals) -> None:
        """Sends its process a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.process_id, number)

    async def kill(self) -> None:
        """Kills its process, and waits until all that it was asked has failed."""
        self.up.clear()
        self.send(signal.SIGKILL)
        if self._reading is not None:
            await self._reading

    async def end(self) -> None:
        """Ends its process in bounded time, by force if need be; a stopped one too."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.up.clear()
        self.send(signal.SIGCONT)
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            await self.kill()

    async def _read(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            said = json.loads(line)
            answer = self._open.pop(said["id"], None)
            if answer is not None and not answer.done():
                answer.set_result(said)
        self.up.clear()
        ended, self._open = self._open, {}
        for answer in ended.values():
            if not answer.done():
                answer.set_exception(EngineEnded(self.name))
        if self._process is not None:
            await self._process.wait()
