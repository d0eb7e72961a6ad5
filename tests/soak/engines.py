"""Engine processes as the load sees them: started, asked, killed, stopped, continued, measured."""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.soak.footprint import Footprint

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.soak.engine_process", "transformers.models.llama.modeling_llama"])
START_SECONDS = 180.0
END_SECONDS = 30.0


def _run(*arguments: Any) -> None:
    """In the new process; this one needs no torch."""
    from tests.soak.engine_process import run

    run(*arguments)


class EngineEnded(Exception):
    """The process has ended before it answered."""


class Engine:
    """One place for an engine, ``name`` in reports; its process is replaced when it was killed.

    ``up`` is set while a process is there that has said where it listens. A stopped process is up.
    """

    def __init__(self, name: str, side: str, lease_seconds: float, logs: Path) -> None:
        self.name = name
        self.up = asyncio.Event()
        self._side, self._lease_seconds, self._log = side, lease_seconds, logs / f"{name}.log"
        self._address = "127.0.0.1:0"
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: BaseProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None and self._process.pid is not None
        return self._process.pid

    @property
    def footprint(self) -> Footprint:
        """What its process holds."""
        return Footprint.now(self.process_id)

    async def start(self) -> None:
        """Starts a process and waits until it serves; raises ``EngineEnded`` when it does not."""
        ours, theirs = socket.socketpair()
        arguments = (theirs, self._side, self._address, self._lease_seconds, str(self._log))
        self._process = FORKING.Process(target=_run, args=arguments, name=self.name, daemon=True)
        await asyncio.to_thread(self._process.start)
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        first = await asyncio.wait_for(reader.readline(), START_SECONDS)
        if not first:
            raise EngineEnded(f"{self.name} did not start; its log ends:\n{self._log.read_text()[-2000:]}")
        self._address = json.loads(first)["address"]
        self._reading = asyncio.create_task(self._read(reader))
        self.up.set()

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer; raises ``EngineEnded`` when it ends before."""
        number = next(self._numbers)
        if self._writer is None or not self.up.is_set():
            raise EngineEnded(self.name)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, **question}).encode() + b"\n")
        return await answer

    def send(self, number: signal.Signals) -> None:
        """Sends its process a signal."""
        assert self._process is not None
        if self._process.is_alive():
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
        if process is None or process.pid is None:
            return
        self.up.clear()
        self.send(signal.SIGCONT)
        if self._writer is not None and self._writer.can_write_eof():
            self._writer.write_eof()
        await asyncio.to_thread(process.join, END_SECONDS)
        self.send(signal.SIGKILL)
        await asyncio.to_thread(process.join)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionResetError):
            while line := await reader.readline():
                said = json.loads(line)
                answer = self._open.pop(said["id"], None)
                if answer is not None and not answer.done():
                    answer.set_result(said)
        self.up.clear()
        ended, self._open = self._open, {}
        for answer in ended.values():
            if not answer.done():
                answer.set_exception(EngineEnded(self.name))
        if self._writer is not None:
            self._writer.close()
