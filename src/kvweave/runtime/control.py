"""The control channel: ZeroMQ sockets that carry the protocol's messages, bounded in every direction.

The prefill side listens on one named address (ROUTER), the decode side opens one socket per peer (DEALER). Nothing
here blocks: what cannot be sent at once counts as lost, and the protocol's timers deal with that. A ROUTER's name for a
connection is chosen by ZeroMQ, so a peer cannot take another's place. Strangers stop at the ``Door``; what gets in is
taken by turns (``Intake``). With keys both sides prove theirs, and all bytes are encrypted.

Who listens nowhere is seen by the operating system's refusals, which come at once, long before a timer ends.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvweave.errors import ConfigurationError
from kvweave.protocol.codec import MOST_MESSAGE_BYTES
from kvweave.runtime.addresses import PeerList, is_loopback, join_address, split_address
from kvweave.runtime.door import Door, TurnedAway
from kvweave.runtime.intake import Intake
from kvweave.runtime.keys import CurveKeys

logger = logging.getLogger("kvweave")

MOST_REQUEST_BYTES = 1 << 20
"""What a decode engine sends is small; a larger message ends its connection."""
MOST_UNREAD_REQUESTS = 64
MOST_UNREAD_ANSWERS = 16
"""Messages that ZeroMQ takes from one connection before we have read them; then the sender has to wait."""
MOST_UNSENT_ANSWERS = 2_000
MOST_UNSENT_REQUESTS = 10_000
"""Messages that wait for a peer which does not read; more are lost."""
MOST_RECEIVED_AT_ONCE = 256
MOST_BYTES_AT_ONCE = 8 << 20
"""What one round takes, of all connections together on the prefill side, of each on the decode side."""
GREETING_MILLISECONDS = 5_000
"""Until when a new connection must have said who it is."""
UNREAD_MILLISECONDS = 30_000
"""How long a connection may take no byte of what is sent to it."""
LINGER_MILLISECONDS = 500
MOST_ATTEMPTS = 6
"""Attempts to connect that fail one after the other until an address counts as unreachable. With the waits between them
(50 ms, each time twice as long) the sixth ends 1.6 s after the first, when each is refused at once."""

_NOBODY = "nobody listens there, or the address is wrong; is the engine running?"
_REFUSALS = {
    zmq.Event.HANDSHAKE_FAILED_AUTH: "it does not let this engine in; add this host to its peers{key}",
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "it has another key than the allowed one, or no keys, or is no engine",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "one side has keys and the other has not; give both keys, or neither",
}
_HUNG_UP = "it hung up: one side has keys and the other has not (give both keys, or neither), or it is no engine"

Received = list[tuple[Any, bytes]]


class Caller(NamedTuple):
    """One connection to a server: ZeroMQ's name for it, the host, and the key that was proven (empty without keys)."""

    route: bytes
    host: str
    key: str

    @property
    def identity(self) -> str:
        """Who answers for this connection."""
        return self.key or self.host


def identity_of(connection: Hashable) -> Hashable:
    """Who answers for a connection of a ``ControlServer``."""
    return connection.identity if isinstance(connection, Caller) else connection


class ControlServer:
    """Where decode engines reach this engine. ``bind`` is host:port; port 0 takes a free one.

    Raises ``ConfigurationError`` when the address is taken, or is not loopback and no peers are named.
    """

    def __init__(self, bind: str, peers: PeerList, advertise: str | None = None, keys: CurveKeys | None = None) -> None:
        host, port = split_address(bind.replace("localhost", "127.0.0.1"))
        if not is_loopback(host) and not peers.names_somebody:
            raise ConfigurationError(
                f"bind: {bind} can be reached from other machines, but no peers are named; "
                "name the hosts or networks of the decode engines: peers=['10.0.0.0/24']"
            )
        if not is_loopback(host) and keys is None:
            logger.warning(
                "control channel at %s: NO KEYS: whoever calls from an allowed host may read and write this engine's "
                "KV memory, and whoever listens on the way too; set keys and allowed_keys (kvweave keys make)",
                bind,
            )
        self._context = zmq.Context(io_threads=1)
        self._door = Door(self._context, peers, keys)
        self._intake: Intake[tuple[Caller, bytes]] = Intake()
        self.socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1), (zmq.MAXMSGSIZE, MOST_REQUEST_BYTES), (zmq.IPV6, int(":" in host)),
            (zmq.RCVHWM, MOST_UNREAD_REQUESTS), (zmq.SNDHWM, MOST_UNSENT_ANSWERS), (zmq.LINGER, LINGER_MILLISECONDS),
            (zmq.HANDSHAKE_IVL, GREETING_MILLISECONDS), (zmq.TCP_MAXRT, UNREAD_MILLISECONDS),
        ):  # fmt: skip
            self.socket.setsockopt(option, value)
        self._door.guard(self.socket)
        try:
            self.socket.bind(f"tcp://{join_address(host, port)}" if port else f"tcp://{join_address(host, 0)[:-1]}*")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigurationError(f"bind: {bind}: {error}; name a free address of this machine") from error
        self.port: int = split_address(self.socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://"))[1]
        self.host = advertise or host

    @property
    def address(self) -> str:
        """Where peers reach it."""
        return join_address(self.host, self.port)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return [self.socket, self._door.socket]

    @property
    def waiting(self) -> bool:
        """Whether messages wait for the next round."""
        return bool(self._intake)

    @property
    def dropped(self) -> int:
        """Messages of senders that sent too fast, dropped since the start."""
        return self._intake.dropped

    def receive(self) -> Received:
        """This round's messages with the connection each came on; lets in and turns away who calls."""
        self._door.answer()
        for frames in _drain(self.socket):
            if len(frames) == 2:
                caller = Caller(frames[0].bytes, _property(frames[1], "Peer-Address"), _property(frames[1], "User-Id"))
                self._intake.put(caller.key or caller.route, (caller, frames[1].bytes), len(frames[1]))
        return list(self._intake.take())

    def take_turned_away(self) -> tuple[list[TurnedAway], int]:
        """See ``Door``."""
        return self._door.take_turned_away()

    def send(self, connection: Any, data: bytes) -> bool:
        """Whether the message could be handed on; a connection that is gone or full takes none."""
        return _sent(self.socket, [connection.route, data])

    def close(self) -> None:
        """Ends within ``LINGER_MILLISECONDS``."""
        self._door.close()
        self._context.destroy(linger=LINGER_MILLISECONDS)


@dataclass(slots=True)
class _Channel:
    """One socket, what ZeroMQ tells of its connection, and how many attempts have failed since the last one.

    ``key`` is the one that the other side must have, ``cause`` why the last attempt failed. A refusal is final at once.
    """

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    key: str = ""
    failed: int = 0
    cause: str = _NOBODY

    def listen(self) -> None:
        """Takes in what has happened to the connection."""
        while int(self.monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = zmq.Event(recv_monitor_message(self.monitor)["event"])
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self.failed, self.cause = 0, _NOBODY
                continue
            final = event in (zmq.Event.HANDSHAKE_FAILED_AUTH, zmq.Event.HANDSHAKE_FAILED_PROTOCOL)
            self.cause = _REFUSALS.get(event, self.cause)
            if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and not self.key:
                self.cause = _HUNG_UP
            self.failed += MOST_ATTEMPTS if final else 1

    def close(self, linger: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger)


class ControlClient:
    """Sockets to prefill engines, one per address, opened by the first message."""

    def __init__(self, peers: PeerList | None = None, keys: CurveKeys | None = None) -> None:
        self._peers = peers or PeerList()
        self._keys = keys
        self._context = zmq.Context(io_threads=1)
        self._channels: dict[str, _Channel] = {}
        self._unopened: dict[str, str] = {}

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return [channel.socket for channel in self._channels.values()]

    def receive(self) -> Received:
        """Messages with the address each came from."""
        return [
            (address, frames[0].bytes)
            for address, channel in tuple(self._channels.items())
            for frames in _drain(channel.socket)
            if len(frames) == 1
        ]

    def key_of(self, address: str) -> str:
        """The key that the engine at an address has proven; empty without keys."""
        channel = self._channels.get(address)
        return "" if channel is None else channel.key

    def failures(self) -> list[tuple[str, str]]:
        """Addresses to which no connection comes about, and why; each once, until it is tried anew."""
        found = list(self._unopened.items())
        self._unopened.clear()
        for address, channel in self._channels.items():
            channel.listen()
            if channel.failed >= MOST_ATTEMPTS:
                channel.failed = 0
                key = "" if self._keys is None else f", and the key {self._keys.public} to its allowed_keys"
                found.append((address, channel.cause.replace("{key}", key)))
        return found

    def send(self, address: str, data: bytes) -> bool:
        """Whether the message could be handed on."""
        if address not in self._channels:
            try:
                self._channels[address] = self._open(address)
            except zmq.ZMQError:
                return False
            except ConfigurationError as error:
                self._unopened[address] = str(error)
                return False
        return _sent(self._channels[address].socket, [data])

    def drop(self, address: str) -> None:
        """Closes the channel to one address; what was sent before still goes out."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close(LINGER_MILLISECONDS)

    def close(self) -> None:
        """Ends within ``LINGER_MILLISECONDS``."""
        for address in tuple(self._channels):
            self.drop(address)
        self._context.term()

    def _open(self, address: str) -> _Channel:
        key = "" if self._keys is None else self._keys.key_for(self._peers, address)
        socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES), (zmq.RCVHWM, MOST_UNREAD_ANSWERS), (zmq.RECONNECT_IVL, 50),
            (zmq.SNDHWM, MOST_UNSENT_REQUESTS), (zmq.RECONNECT_IVL_MAX, 2000), (zmq.LINGER, LINGER_MILLISECONDS),
            (zmq.IPV6, int("[" in address)),
        ):  # fmt: skip
            socket.setsockopt(option, value)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        told = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.CONNECT_RETRIED
        for event in _REFUSALS:
            told |= event
        channel = _Channel(socket, socket.get_monitor_socket(told), key)
        try:
            socket.connect(f"tcp://{address}")
        except zmq.ZMQError:
            channel.close(linger=0)
            raise
        return channel


def _drain(socket: zmq.Socket[bytes]) -> Iterator[list[zmq.Frame]]:
    nbytes = 0
    for _ in range(MOST_RECEIVED_AT_ONCE):
        if nbytes > MOST_BYTES_AT_ONCE:
            return
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        nbytes += sum(map(len, frames))
        yield frames


def _sent(socket: zmq.Socket[bytes], frames: list[bytes]) -> bool:
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.ZMQError:
        return False
    return True


def _property(frame: zmq.Frame, name: str) -> str:
    """What the socket knows of the sender: its IP address, the key that it proved to have."""
    try:
        value = str(frame.get(name))
    except zmq.ZMQError:
        return ""
    return value.removeprefix("::ffff:")
