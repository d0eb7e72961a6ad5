"""The one polling thread of an engine: the only caller of its transports, sockets and books.

Other threads hand over commands and wake it. How long it waits between two rounds follows from what is open::

    READING   own reads are open          no wait, other threads get a turn: bytes move only inside a round
    SERVING   a peer may be reading, or an answer is awaited      until a command comes, at most a fifth of a ms
    WAITING   something is open that messages will tell of        until one or a command comes, at most 10 ms
    IDLE      nothing is open             the same, at most 100 ms

It sleeps most of the time, and who is woken beside busy threads waits for its turn, which on a machine with few cores
is most of what a message takes. So it asks for its turns before others, while it sleeps for long (``favour``).

Whatever unforeseen happens in a round ends the engine: everything that waits for it fails, with the cause.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Protocol

import zmq

from kvweave.errors import KVWeaveError
from kvweave.runtime.favour import Favour

SERVING_SECONDS = 0.0002
WAITING_MILLISECONDS = 10
IDLE_MILLISECONDS = 100
CLOSE_SECONDS = 5.0

logger = logging.getLogger("kvweave")


class Activity(IntEnum):
    """How much is open after a round."""

    IDLE = 0
    WAITING = 1
    SERVING = 2
    READING = 3


class Pollable(Protocol):
    """What the thread drives. All methods are called from it alone."""

    def poll(self) -> Activity:
        """One round; must not block."""
        ...

    def sockets(self) -> Sequence[Any]:
        """What to wait on while idle."""
        ...

    def begin_closing(self) -> None:
        """Ends what is open; rounds go on until ``poll`` is idle or the time is over."""
        ...

    def close(self, cause: BaseException | None) -> None:
        """The last call; ``cause`` is what broke the thread, if anything did."""
        ...


class PollingThread:
    """Drives one pollable until it is closed."""

    def __init__(self, name: str, pollable: Pollable) -> None:
        self._pollable = pollable
        self._waker, self._wakened = socket.socketpair()
        self._waker.settimeout(0)
        self._wakened.settimeout(0)
        self._poller = zmq.Poller()
        self._watched: tuple[Any, ...] = ()
        self._closing = threading.Event()
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kvweave {name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether commands are still carried out."""
        return self._thread.is_alive() and not self._closing.is_set()

    def wake(self) -> None:
        """Ends the thread's wait; callable from any thread."""
        self._told.set()
        with suppress(OSError):
            self._waker.send(b"w")

    def close(self) -> None:
        """Ends the thread, in bounded time; closing again is harmless."""
        self._closing.set()
        self.wake()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(2 * CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.error(
                "%s did not end within %g s; its memory must not be used again", self._thread.name, 2 * CLOSE_SECONDS
            )

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            favour = Favour()
            while not self._closing.is_set():
                self._told.clear()
                activity = self._pollable.poll()
                favour.ask(activity < Activity.SERVING)
                self._wait(activity)
            self._finish()
        except KVWeaveError as error:
            logger.error("%s ends: %s", self._thread.name, error)
            cause = error
        except Exception as error:
            logger.exception("%s ends", self._thread.name)
            cause = error
        finally:
            self._closing.set()
            self._pollable.close(cause)
            self._waker.close()
            self._wakened.close()

    def _finish(self) -> None:
        """Rounds after the last command, so that reads end and their peers hear of it."""
        self._pollable.begin_closing()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._pollable.poll() is Activity.READING and time.monotonic() < deadline:
            time.sleep(SERVING_SECONDS)

    def _wait(self, activity: Activity) -> None:
        if activity is Activity.READING:
            time.sleep(0)
            return
        if activity is Activity.SERVING:
            self._told.wait(SERVING_SECONDS)
            return
        self._watch((self._wakened, *self._pollable.sockets()))
        told = self._poller.poll(IDLE_MILLISECONDS if activity is Activity.IDLE else WAITING_MILLISECONDS)
        if any(waited == self._wakened.fileno() for waited, _ in told):
            with suppress(BlockingIOError):
                self._wakened.recv(4096)

    def _watch(self, sockets: tuple[Any, ...]) -> None:
        """Has the poller wait on these; they seldom change."""
        if sockets != self._watched:
            self._poller = zmq.Poller()
            for watched in sockets:
                self._poller.register(watched, zmq.POLLIN)
            self._watched = sockets
