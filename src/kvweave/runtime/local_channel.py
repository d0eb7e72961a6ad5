"""A channel between two processes of one engine on one machine: from its coordinator to one rank's worker.

The worker listens on a socket in a folder of its own that nobody but its user may enter, and the folder is removed once
the coordinator has called: then nobody else can, and nothing is left behind. The first message is a token that the two
were given beforehand. Messages are bytes, bounded in size and number; nothing here blocks.
"""

from __future__ import annotations

import hmac
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import zmq

from kvweave.errors import ConfigurationError, LocalProtocolError, TransportError, TransportErrorKind

MOST_LINK_BYTES = 64 << 20
MOST_QUEUED_MESSAGES = 100_000
_MOST_PATH_LETTERS = 100
_LINGER_MILLISECONDS = 500
_CALL_MILLISECONDS = 10_000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one worker listens, and what its coordinator must say first. Whoever holds it may command the worker."""

    address: str
    token: bytes


class WorkerChannel:
    """The worker's end. It hears nobody until the token came."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kvweave-"))
        path = self._folder / "rank"
        self.endpoint = Endpoint(f"ipc://{path}", secrets.token_bytes(32))
        self._called = False
        self._context = zmq.Context(io_threads=1)
        with ExitStack() as stack:
            stack.callback(self.close)
            if len(str(path)) > _MOST_PATH_LETTERS:
                raise ConfigurationError(
                    f"temporary folder: {path} has {len(str(path))} letters, a socket's path at most "
                    f"{_MOST_PATH_LETTERS}; set TMPDIR to a shorter one"
                )
            self.socket = _open(self._context)
            self.socket.bind(self.endpoint.address)
            stack.pop_all()

    def receive(self) -> Iterator[bytes]:
        """Messages of the coordinator that have come."""
        for data in _drain(self.socket):
            if self._called:
                yield data
            elif hmac.compare_digest(data, self.endpoint.token):
                self._called = True
                shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, data: bytes) -> None:
        """Hands a message on; raises ``LocalProtocolError`` when the coordinator takes none any more."""
        _send(self.socket, data)

    def close(self) -> None:
        """Ends within half a second."""
        self._context.destroy(linger=_LINGER_MILLISECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


class CoordinatorChannel:
    """The coordinator's end. A worker that has ended takes nothing any more: ``send`` raises, and what of its messages
    was not received by then is lost.

    Raises ``TransportError`` (TIMED_OUT) when no worker listens there.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._context = zmq.Context(io_threads=1)
        self.socket = _open(self._context)
        for option, value in ((zmq.IMMEDIATE, 1), (zmq.RECONNECT_IVL, -1), (zmq.SNDTIMEO, _CALL_MILLISECONDS)):
            self.socket.setsockopt(option, value)
        self.socket.connect(endpoint.address)
        try:
            self.socket.send(endpoint.token)
        except zmq.Again:
            self.close()
            raise TransportError(
                TransportErrorKind.TIMED_OUT, f"link: no worker answers at {endpoint.address}; is it running?"
            ) from None

    def receive(self) -> Iterator[bytes]:
        """Messages of the worker that have come."""
        return _drain(self.socket)

    def send(self, data: bytes) -> None:
        """Hands a message on; raises ``LocalProtocolError`` when the worker takes none any more."""
        _send(self.socket, data)

    @property
    def open(self) -> bool:
        """Whether the worker is there; a lost connection does not come back."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def wait(self, seconds: float) -> bool:
        """Whether a message came within this time."""
        return bool(self.socket.poll(int(1000 * seconds)))

    def close(self) -> None:
        """Ends within half a second."""
        self._context.destroy(linger=_LINGER_MILLISECONDS)


def _open(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    for option, value in (
        (zmq.MAXMSGSIZE, MOST_LINK_BYTES), (zmq.RCVHWM, MOST_QUEUED_MESSAGES), (zmq.SNDHWM, MOST_QUEUED_MESSAGES),
        (zmq.LINGER, _LINGER_MILLISECONDS),
    ):  # fmt: skip
        socket.setsockopt(option, value)
    return socket


def _drain(socket: zmq.Socket[bytes]) -> Iterator[bytes]:
    while True:
        try:
            yield socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return


def _send(socket: zmq.Socket[bytes], data: bytes) -> None:
    if len(data) > MOST_LINK_BYTES:
        raise LocalProtocolError(f"link: a message of {len(data)} bytes, at most {MOST_LINK_BYTES} are taken")
    try:
        socket.send(data, zmq.NOBLOCK)
    except zmq.Again:
        raise LocalProtocolError(
            f"link: the other process has ended, or {MOST_QUEUED_MESSAGES} messages wait for it; restart the engine"
        ) from None
