"""Messages to bytes and back: an envelope whose version is checked before anything else, then msgpack by schema.

::

    "KVWV" | protocol version (u16) | one message of protocol.messages in msgpack

Whatever bytes come in, decoding gives a message or raises ``RemoteProtocolError``, never anything else.
"""

from __future__ import annotations

import struct

import msgspec

from kvweave.errors import IncompatiblePeer, LocalProtocolError, Mismatch, RemoteProtocolError
from kvweave.protocol.messages import AnyMessage, EngineRole

PROTOCOL_VERSION = 1
MOST_MESSAGE_BYTES = 64 << 20

_MAGIC = b"KVWV"
_HEAD = struct.Struct(">4sH")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """One message as bytes; raises ``LocalProtocolError`` when it is larger than a peer would take."""
    data = _HEAD.pack(_MAGIC, PROTOCOL_VERSION) + _ENCODER.encode(message)
    if len(data) > MOST_MESSAGE_BYTES:
        raise LocalProtocolError(
            f"{type(message).__name__}: {len(data)} bytes, at most {MOST_MESSAGE_BYTES} fit one message; "
            "describe fewer ranks per engine or shorter block tables"
        )
    return data


def decode(data: bytes, sender: EngineRole = EngineRole.PREFILL) -> AnyMessage:
    """One message from a peer's bytes; ``sender`` says which of both versions is the source's, if they differ.

    Raises ``IncompatiblePeer`` for another protocol version, ``RemoteProtocolError`` for everything else that is not
    a message.
    """
    if len(data) > MOST_MESSAGE_BYTES:
        raise RemoteProtocolError(f"message: {len(data)} bytes, at most {MOST_MESSAGE_BYTES} are taken")
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise RemoteProtocolError(f"message: {len(data)} bytes starting with {data[:8].hex()} are not of kvweave")
    version: int = _HEAD.unpack_from(data)[1]
    if version != PROTOCOL_VERSION:
        theirs, ours = str(version), str(PROTOCOL_VERSION)
        source, target = (theirs, ours) if sender is EngineRole.PREFILL else (ours, theirs)
        remedy = "run the same kvweave release on both sides"
        raise IncompatiblePeer([Mismatch("protocol version", source, target, remedy)])
    try:
        return _DECODER.decode(memoryview(data)[_HEAD.size :])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"message: {error}") from error
