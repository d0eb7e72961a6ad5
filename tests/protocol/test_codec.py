"""Any bytes decode to a message or to our error; messages survive the round trip."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.errors import IncompatiblePeer, LocalProtocolError, RemoteProtocolError
from kvweave.protocol.codec import MOST_MESSAGE_BYTES, decode, encode
from kvweave.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Claim,
    Claimed,
    EngineRole,
    HandshakeReply,
    HandshakeRequest,
    Heartbeat,
    HeartbeatReply,
    RankAgent,
    RefusalReason,
    Refused,
    Renewed,
)
from tests.protocol.examples import ENGINE, TABLES, key

MESSAGES = [
    HandshakeRequest(1, "decode-1", EngineRole.DECODE, 2, (0, 1)),
    HandshakeReply(1, ENGINE, 30.0, b"description", (RankAgent(0, b"data"),)),
    Claim(7, ENGINE, key()),
    Claimed(7, key(), 10, TABLES, 30.0),
    Renewed(7, 3, 30.0),
    Refused(7, RefusalReason.RELEASED, "it is over"),
    Acknowledge(7, key(), (0, 1)),
    Acknowledged(7, (0, 1)),
    Heartbeat((key(), key("other", 2))),
    HeartbeatReply(((key(), RefusalReason.LEASE_ENDED),), 3.0),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_survives_the_round_trip(message: object) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("sender", "text"),
    [(EngineRole.PREFILL, "source has 9, target has 1"), (EngineRole.DECODE, "source has 1, target has 9")],
)
def test_version_is_checked_before_the_rest_is_looked_at(sender: EngineRole, text: str) -> None:
    other = b"KVWV" + (9).to_bytes(2, "big") + b"\xff\xff not msgpack"
    with pytest.raises(IncompatiblePeer, match=text):
        decode(other, sender)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"KVWV",
        b"HTTP/1.1 200 OK",
        encode(MESSAGES[0])[:-1],
        encode(MESSAGES[0]) + b"\x00",
        encode(MESSAGES[0])[:6],
    ],
    ids=["empty", "half a head", "another protocol", "cut off", "one byte more", "head alone"],
)
def test_what_is_no_message_is_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


def test_unknown_field_is_refused() -> None:
    fields = msgspec.to_builtins(MESSAGES[6]) | {"colour": "red"}
    with pytest.raises(RemoteProtocolError, match="colour"):
        decode(encode(MESSAGES[6])[:6] + msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "message",
    [
        Claimed(7, key(), 10, TABLES, float("nan")),
        Claimed(7, key(), 10, TABLES, float("inf")),
        Claimed(7, key(), 0, TABLES, 1.0),
        Claimed(7, key(), 10, {"full": (-2,)}, 1.0),
        Claim(-1, ENGINE, key()),
        Claim(2**63, ENGINE, key()),
        Claim(1, "e" * 1000, key()),
        Heartbeat((key(),) * 2000),
    ],
    ids=["nan lease", "infinite lease", "no token", "block -2", "claim -1", "claim 2^63", "long id", "too many offers"],
)
def test_numbers_and_lengths_have_bounds(message: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(encode(message))


def test_too_large_a_message_is_taken_from_neither_side() -> None:
    large = HandshakeReply(1, ENGINE, 30.0, bytes(MOST_MESSAGE_BYTES), ())
    with pytest.raises(LocalProtocolError, match="at most"):
        encode(large)
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(bytes(MOST_MESSAGE_BYTES + 1))


@given(st.binary(max_size=400))
def test_random_bytes_raise_nothing_but_our_error(data: bytes) -> None:
    for prefix in (b"", encode(MESSAGES[0])[:6]):
        with pytest.raises(RemoteProtocolError):
            decode(prefix + data)


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_raise_nothing_but_our_error(message: object, data: st.DataObject) -> None:
    damaged = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        message = decode(bytes(damaged))
        assert decode(encode(message)) == message


WIRE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@given(st.sampled_from(MESSAGES), st.data())
def test_foreign_values_in_any_field_raise_nothing_but_our_error(message: object, data: st.DataObject) -> None:
    fields = msgspec.to_builtins(message)
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(WIRE)
    with suppress(RemoteProtocolError):
        read = decode(encode(message)[:6] + msgspec.msgpack.encode(fields))
        assert decode(encode(read)) == read
