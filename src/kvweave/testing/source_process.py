"""A NIXL source in an operating system process of its own, to be read, stopped and killed by tests.

The processes are forked from one server that has imported NIXL already: NIXL brings torch on machines without a GPU,
and importing that once for every process is what would take the time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvweave.core.layout import Region

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["kvweave.transport.nixl"])


class SourceProcess:
    """A process that registers a file's memory and makes progress; ``memory`` is a view of the same bytes here."""

    def __init__(self, file: Path, name: str) -> None:
        self.memory: npt.NDArray[np.uint8] = np.memmap(file, np.uint8, mode="r")
        self._connection, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_serve, args=(theirs, file, name), daemon=True)
        self._process.start()
        theirs.close()

    def description(self) -> tuple[int, bytes]:
        """The address of its memory there and its agent data; waits until it is ready."""
        address, agent_data = self._connection.recv_bytes().split(b" ", 1)
        return int(address), agent_data

    def stop(self) -> None:
        """Stops it where it stands, as SIGSTOP does."""
        os.kill(self._pid(), signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a stopped one go on."""
        os.kill(self._pid(), signal.SIGCONT)

    def kill(self) -> None:
        """Kills it, as SIGKILL does, and waits until it is gone."""
        self._process.kill()
        self._process.join()

    def end(self) -> None:
        """Lets it end by itself if it still runs, stopped or not, and gives up what belongs to it. May be repeated."""
        if not self._connection.closed:
            self._connection.close()
            if self._process.is_alive():
                self.resume()
            self._process.join()
            self._process.close()

    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _serve(connection: Connection, file: Path, name: str) -> None:
    from kvweave.transport.nixl import NixlTransport

    memory = np.memmap(file, np.uint8, mode="r+")
    transport = NixlTransport(name, "auto")
    transport.register([Region(memory.ctypes.data, memory.nbytes)])
    connection.send_bytes(b"%d %s" % (memory.ctypes.data, transport.agent_data()))
    while not connection.poll(0.0005):
        transport.progress()
    transport.close()
