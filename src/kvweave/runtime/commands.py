"""The way from any thread to the polling thread: a queue that says when nobody takes from it any more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from kvweave.errors import LocalProtocolError

Command = TypeVar("Command")


class CommandQueue(Generic[Command]):
    """Commands in the order in which they were put; after ``close`` none can be put, so none is ever forgotten."""

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, command: Command) -> None:
        """Adds a command, from any thread; raises ``LocalProtocolError`` when the engine has ended."""
        with self._lock:
            if self._closed:
                raise LocalProtocolError("the engine has ended; make a new one")
            self._commands.append(command)

    def take(self) -> Iterator[Command]:
        """Takes commands out until there is none."""
        while self._commands:
            yield self._commands.popleft()

    def close(self) -> list[Command]:
        """Ends the queue; the commands that were left in it."""
        with self._lock:
            self._closed = True
        return list(self.take())
