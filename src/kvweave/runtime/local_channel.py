"""A channel between two processes of one engine on one machine: from its coordinator to one rank's worker.

The worker listens on a socket in a folder of its own that nobody but its user may enter, and the folder is removed once
the coordinator has called: then nobody else can, and nothing is left behind. The first message is a token that the two
were given beforehand. Messages are bytes, each after its length, bounded in size.

A plain socket of the operating system, because a request waits for three messages on its way and a message queue of its
own threads would hand each over twice more.
"""

from __future__ import annotations

import hmac
import secrets
import select
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from kvweave.errors import ConfigurationError, LocalProtocolError, TransportError, TransportErrorKind

MOST_LINK_BYTES = 64 << 20
MOST_UNREAD_SECONDS = 10.0
"""How long an end may take nothing of a message before it counts as ended."""
_MOST_PATH_LETTERS = 100
_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one worker listens, and what its coordinator must say first. Whoever holds it may command the worker."""

    path: str
    token: bytes


class _Connection:
    """One end of an open connection."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(0)
        self.socket = connected
        self.open = True
        self._received = bytearray()

    def receive(self) -> Iterator[bytes]:
        """The messages that have come whole; raises ``LocalProtocolError`` for one that is too long."""
        self._read()
        while len(self._received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "little")
            _require_bounded(end - _LENGTH_BYTES)
            if len(self._received) < end:
                return
            data = bytes(self._received[_LENGTH_BYTES:end])
            del self._received[:end]
            yield data

    def send(self, data: bytes) -> None:
        """Hands a message on; raises ``LocalProtocolError`` when the other end takes none any more.

        What comes meanwhile is read, so that two ends that both send do not wait for each other.
        """
        _require_bounded(len(data))
        left = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        while left:
            try:
                left = left[self.socket.send(left) :]
            except BlockingIOError:
                if not self.wait(MOST_UNREAD_SECONDS, select.POLLIN | select.POLLOUT):
                    raise _ended() from None
                self._read()
            except OSError as error:
                raise _ended() from error

    def wait(self, seconds: float, events: int = select.POLLIN) -> bool:
        """Whether one of these events came within this time."""
        poller = select.poll()
        poller.register(self.socket, events)
        return bool(poller.poll(1000 * seconds))

    def close(self) -> None:
        """Ends at once; what was sent can still be received."""
        self.open = False
        self.socket.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while self.open:
                try:
                    data = self.socket.recv(_CHUNK_BYTES)
                except ConnectionError:
                    data = b""
                self._received += data
                self.open = bool(data)


class WorkerChannel:
    """The worker's end. It hears nobody until the token came."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kvweave-"))
        path = self._folder / "rank"
        self.endpoint = Endpoint(str(path), secrets.token_bytes(32))
        self._listener = socket.socket(socket.AF_UNIX)
        self._caller: _Connection | None = None
        self._known = False
        with ExitStack() as stack:
            stack.callback(self.close)
            if len(str(path)) > _MOST_PATH_LETTERS:
                raise ConfigurationError(
                    f"temporary folder: {path} has {len(str(path))} letters, a socket's path at most "
                    f"{_MOST_PATH_LETTERS}; set TMPDIR to a shorter one"
                )
            self._listener.settimeout(0)
            self._listener.bind(str(path))
            self._listener.listen()
            stack.pop_all()

    def sockets(self) -> tuple[socket.socket, ...]:
        """What to wait on: for a call, then for messages; nothing once the coordinator has ended."""
        if self._caller is None:
            return (self._listener,)
        return (self._caller.socket,) if self._caller.open else ()

    def receive(self) -> Iterator[bytes]:
        """Messages of the coordinator that have come."""
        if self._caller is None:
            with suppress(BlockingIOError):
                self._caller = _Connection(self._listener.accept()[0])
        caller = self._caller
        if caller is None:
            return
        for data in caller.receive():
            if self._known:
                yield data
                continue
            self._known = hmac.compare_digest(data, self.endpoint.token)
            if not self._known:
                break
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            if self._known or caller.open:
                return
        caller.close()
        self._caller = None

    def send(self, data: bytes) -> None:
        """Hands a message on; raises ``LocalProtocolError`` when the coordinator takes none any more."""
        if self._caller is None or not self._known:
            raise _ended()
        self._caller.send(data)

    def close(self) -> None:
        """Ends at once; what was sent can still be received."""
        if self._caller is not None:
            self._caller.close()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class CoordinatorChannel:
    """The coordinator's end. A worker that has ended takes nothing any more: ``send`` raises, and what of its messages
    was not received by then is lost.

    Raises ``TransportError`` (PEER_LOST) when no worker listens there.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(endpoint.path)
        except OSError as error:
            connected.close()
            raise TransportError(
                TransportErrorKind.PEER_LOST, f"link: no worker answers at {endpoint.path} ({error}); is it running?"
            ) from error
        self._connection = _Connection(connected)
        self._connection.send(endpoint.token)

    def sockets(self) -> tuple[socket.socket, ...]:
        """What to wait on."""
        return (self._connection.socket,)

    def receive(self) -> Iterator[bytes]:
        """Messages of the worker that have come."""
        return self._connection.receive()

    def send(self, data: bytes) -> None:
        """Hands a message on; raises ``LocalProtocolError`` when the worker takes none any more."""
        self._connection.send(data)

    @property
    def open(self) -> bool:
        """Whether the worker was there when messages were last received; a lost connection does not come back."""
        return self._connection.open

    def wait(self, seconds: float) -> bool:
        """Whether a message, or the end, came within this time."""
        return self._connection.wait(seconds)

    def close(self) -> None:
        """Ends at once; what was sent can still be received."""
        self._connection.close()


def _require_bounded(nbytes: int) -> None:
    if nbytes > MOST_LINK_BYTES:
        raise LocalProtocolError(f"link: a message of {nbytes} bytes, at most {MOST_LINK_BYTES} are taken")


def _ended() -> LocalProtocolError:
    return LocalProtocolError("link: the other process has ended, or takes no messages any more; restart the engine")
