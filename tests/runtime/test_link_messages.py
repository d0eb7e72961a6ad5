"""Commands and events as bytes: the same values come out, anything else is an error of ours."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import kvweave as kw
from kvweave.core.parallel import RankCoordinates
from kvweave.core.portion import Portion
from kvweave.errors import Mismatch, RemoteProtocolError, TransportError, TransportErrorKind
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads, RetryReads
from kvweave.protocol.messages import RefusalReason
from kvweave.runtime.events import Connected, NotConnected, ReadFailed, ReadsEnded, ReadStatistics
from kvweave.runtime.link_messages import (
    Adopt,
    Attend,
    End,
    Ended,
    decode_command,
    decode_event,
    encode_command,
    encode_event,
)
from tests.runtime.memory import ATTENTION

LAYOUT = kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=2), kw.CacheConfig(num_blocks=4))
STATISTICS = ReadStatistics({RankCoordinates(1, 0, 3): 70}, 4, 0.25, 0.5, {"window": (3, 9)})
READS = PostReads(7, "host:1", {"full": (1, 2)}, {"full": (-1, 5)}, 3, 40, 9, attended=False)
COMMANDS = [
    DropPeer("host:1"),
    READS,
    replace(READS, fence=12, portion=Portion(20, others=True)),
    RetryReads(7, 3),
    CancelReads(7),
    Attend(busy=True),
    End(),
]
EVENTS = [
    Connected("host:1", 2, 3),
    NotConnected("host:1", 2, 3, "no", (Mismatch("dtype", "a", "b", "choose one"),)),
    ReadFailed(7, 3, FailureReason.BLOCK_TABLES, "too short"),
    ReadFailed(7, 3, RefusalReason.RELEASED, "gone"),
    ReadFailed(7, 3, FailureReason.READ_FAILED, "elsewhere", None, elsewhere=True),
    ReadsEnded(7, 3, 12.5, STATISTICS),
    ReadsEnded(7, 3, 12.5, STATISTICS, attended=False),
    Ended(),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_comes_out_as_it_went_in(command: object) -> None:
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_comes_out_as_it_went_in(event: object) -> None:
    assert decode_event(encode_event(event)) == event


def test_layouts_travel_with_their_ranks() -> None:
    adopted = decode_command(encode_command(Adopt(1, LAYOUT)))
    connected = decode_command(encode_command(ConnectPeer("host:1", 2, LAYOUT, (b"one", b"two"))))
    assert isinstance(adopted, Adopt)
    assert isinstance(connected, ConnectPeer)
    assert (adopted.rank, adopted.layout.ranks) == (1, LAYOUT.ranks)
    assert (connected.layout.ranks, connected.agents) == (LAYOUT.ranks, (b"one", b"two"))


def test_the_transports_own_error_keeps_kind_and_words() -> None:
    error = TransportError(TransportErrorKind.PEER_LOST, "peer p: gone")
    event = decode_event(encode_event(ReadFailed(7, 3, FailureReason.PEER_LOST, str(error), error)))
    assert isinstance(event, ReadFailed)
    assert event.error is not None
    assert (event.error.kind, str(event.error)) == (TransportErrorKind.PEER_LOST, str(error))


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(["unknown", 1])], ids=["none", "broken", "kind"])
def test_other_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_command, decode_event):
        with pytest.raises(RemoteProtocolError, match="link"):
            decode(data)


def test_an_unknown_reason_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="'bored' is no reason"):
        decode_event(msgspec.msgpack.encode(["read_failed", 7, 3, "bored", "text", None, False]))
