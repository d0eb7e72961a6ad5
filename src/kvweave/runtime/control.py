"""The control channel: ZeroMQ sockets that carry the protocol's messages, bounded in every direction.

The prefill side listens on one named address (ROUTER), the decode side opens one socket per peer (DEALER). Nothing
here blocks: what cannot be sent at once counts as lost, and the protocol's timers deal with that. A ROUTER's name for a
connection is chosen by ZeroMQ, so a peer cannot take another's place.

Who listens nowhere is seen by the operating system's refusals, which come at once, long before a timer ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from kvweave.errors import ConfigurationError
from kvweave.protocol.codec import MOST_MESSAGE_BYTES
from kvweave.runtime.addresses import PeerList, is_loopback, join_address, split_address

MOST_REQUEST_BYTES = 1 << 20
"""What a decode engine sends is small; a larger message ends its connection."""
MOST_QUEUED_MESSAGES = 10_000
MOST_RECEIVED_AT_ONCE = 256
LINGER_MILLISECONDS = 500
MOST_ATTEMPTS = 6
"""Attempts to connect that fail one after the other until an address counts as unreachable. With the waits between them
(50 ms, each time twice as long) the sixth ends 1.6 s after the first, when each is refused at once."""

Received = list[tuple[Any, bytes]]


class ControlServer:
    """Where decode engines reach this engine. ``bind`` is host:port; port 0 takes a free one.

    Raises ``ConfigurationError`` when the address is taken, or is not loopback and no peers are named.
    """

    def __init__(self, bind: str, peers: PeerList, advertise: str | None = None) -> None:
        host, port = split_address(bind.replace("localhost", "127.0.0.1"))
        if not is_loopback(host) and not peers.names_somebody:
            raise ConfigurationError(
                f"bind: {bind} can be reached from other machines, but no peers are named; "
                "name the hosts or networks of the decode engines: peers=['10.0.0.0/24']"
            )
        self._peers = peers
        self._context = zmq.Context(io_threads=1)
        self.socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1), (zmq.MAXMSGSIZE, MOST_REQUEST_BYTES), (zmq.IPV6, int(":" in host)),
            (zmq.RCVHWM, MOST_QUEUED_MESSAGES), (zmq.SNDHWM, MOST_QUEUED_MESSAGES), (zmq.LINGER, LINGER_MILLISECONDS),
        ):  # fmt: skip
            self.socket.setsockopt(option, value)
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
        return [self.socket]

    def receive(self) -> Received:
        """Messages with the connection each came on; those from hosts that are not allowed are dropped unread."""
        return [
            (frames[0].bytes, frames[1].bytes)
            for frames in _drain(self.socket)
            if len(frames) == 2 and self._peers.allows(_sender(frames[1]))
        ]

    def send(self, connection: Any, data: bytes) -> bool:
        """Whether the message could be handed on; a connection that is gone or full takes none."""
        return _sent(self.socket, [connection, data])

    def close(self) -> None:
        """Ends within ``LINGER_MILLISECONDS``."""
        self._context.destroy(linger=LINGER_MILLISECONDS)


@dataclass(slots=True)
class _Channel:
    """One socket, what ZeroMQ tells of its connection, and how many attempts have failed since the last one."""

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    failed: int = 0

    def listen(self) -> None:
        """Takes in what has happened to the connection."""
        while int(self.monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            connected = recv_monitor_message(self.monitor)["event"] == zmq.Event.CONNECTED
            self.failed = 0 if connected else self.failed + 1

    def close(self, linger: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger)


class ControlClient:
    """Sockets to prefill engines, one per address, opened by the first message."""

    def __init__(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._channels: dict[str, _Channel] = {}

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

    def unreachable(self) -> list[str]:
        """Addresses that could not be connected to, ``MOST_ATTEMPTS`` times since they were named here last."""
        found = []
        for address, channel in self._channels.items():
            channel.listen()
            if channel.failed >= MOST_ATTEMPTS:
                channel.failed = 0
                found.append(address)
        return found

    def send(self, address: str, data: bytes) -> bool:
        """Whether the message could be handed on."""
        if address not in self._channels:
            try:
                self._channels[address] = self._open(address)
            except zmq.ZMQError:
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
        socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES), (zmq.RCVHWM, MOST_QUEUED_MESSAGES), (zmq.RECONNECT_IVL, 50),
            (zmq.SNDHWM, MOST_QUEUED_MESSAGES), (zmq.RECONNECT_IVL_MAX, 2000), (zmq.LINGER, LINGER_MILLISECONDS),
            (zmq.IPV6, int("[" in address)),
        ):  # fmt: skip
            socket.setsockopt(option, value)
        channel = _Channel(socket, socket.get_monitor_socket(zmq.Event.CONNECTED | zmq.Event.CONNECT_RETRIED))
        try:
            socket.connect(f"tcp://{address}")
        except zmq.ZMQError:
            channel.close(linger=0)
            raise
        return channel


def _drain(socket: zmq.Socket[bytes]) -> Iterator[list[zmq.Frame]]:
    for _ in range(MOST_RECEIVED_AT_ONCE):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return


def _sent(socket: zmq.Socket[bytes], frames: list[bytes]) -> bool:
    try:
        socket.send_multipart(frames, zmq.NOBLOCK)
    except zmq.ZMQError:
        return False
    return True


def _sender(frame: zmq.Frame) -> str:
    """The sender's IP address, as the socket saw it."""
    try:
        address = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
    return address.removeprefix("::ffff:")
