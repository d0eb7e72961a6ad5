"""Looking at a running engine from outside: its description, without its agent data."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvweave.core.layout import EngineLayout
from kvweave.errors import RemoteProtocolError, TransferRefused, TransportError, TransportErrorKind
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.description import decode_layout
from kvweave.protocol.messages import EngineRole, HandshakeRefused, HandshakeReply, HandshakeRequest
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import ControlClient
from kvweave.runtime.keys import CurveKeys
from kvweave.runtime.naming import engine_name, require_own_name

_GLANCE_MILLISECONDS = 20


@dataclass(frozen=True, slots=True)
class Observed:
    """A running engine: where it was asked, its id, and how it is laid out."""

    address: str
    engine_id: str
    layout: EngineLayout


def observe(address: str, peers: PeerList, keys: CurveKeys | None = None, seconds: float = 10.0) -> Observed:
    """Asks the engine at ``host:port`` how it is laid out.

    Raises ``TransportError`` when nobody answers or lets us in, ``TransferRefused`` when the engine refuses,
    ``IncompatiblePeer`` for another protocol version, ``RemoteProtocolError`` for an answer that is none.
    """
    name = engine_name("observer")
    client = ControlClient(peers, keys)
    try:
        question = HandshakeRequest(1, name if keys is None else keys.bound_id(name), EngineRole.OBSERVER, 1)
        client.send(address, encode(question))
        return _judge(address, _wait(client, address, seconds), client.key_of(address))
    finally:
        client.close()


def _wait(client: ControlClient, address: str, seconds: float) -> bytes:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for _, data in client.receive():
            return data
        for _, text in client.failures():
            raise TransportError(TransportErrorKind.UNAVAILABLE, f"{address}: {text}")
        for socket in client.sockets():
            socket.poll(_GLANCE_MILLISECONDS)
    raise TransportError(TransportErrorKind.TIMED_OUT, f"{address}: no answer within {seconds:g} s; is it an engine?")


def _judge(address: str, data: bytes, key: str) -> Observed:
    answer = decode(data)
    match answer:
        case HandshakeRefused():
            raise TransferRefused(answer.reason.value, f"{address}: {answer.text}")
        case HandshakeReply():
            require_own_name(answer.engine_id, key)
            return Observed(address, answer.engine_id, decode_layout(answer.description))
        case _:
            raise RemoteProtocolError(f"{address}: {type(answer).__name__} is no answer to a handshake")
