"""The prefill engine alone: offers never wait, wrong ones are refused at once, releases come once."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue

import pytest
import zmq

from kvweave.errors import BlockTableError, ConfigurationError, LocalProtocolError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import ReleaseReason
from kvweave.protocol.messages import Claim, RefusalReason, Refused
from kvweave.runtime import PrefillEngine, Released
from kvweave.transport.memory import MemoryNetwork
from tests.protocol.examples import key, small_layout
from tests.runtime.pair import PATIENCE, wait_until

BLOCKS = {"full": [5, 2, 7]}


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
def engine(network: MemoryNetwork) -> Iterator[PrefillEngine]:
    with PrefillEngine(small_layout(4), transport=network.join) as made:
        yield made


@pytest.fixture
def released() -> SimpleQueue[Released]:
    return SimpleQueue()


def test_reference_says_where_the_offer_is(engine: PrefillEngine) -> None:
    reference = engine.offer("request", 10, BLOCKS)
    assert (reference.address, reference.engine_id) == (engine.address, engine.engine_id)
    assert (reference.num_tokens, reference.tables, reference.tp_size) == (10, {"full": (5, 2, 7)}, 4)


def test_every_offer_has_a_generation_of_its_own(engine: PrefillEngine) -> None:
    assert len({engine.offer("request", 10, BLOCKS).generation for _ in range(10)}) == 10


def test_nothing_valid_is_released_and_has_no_reference(engine: PrefillEngine, released: SimpleQueue[Released]) -> None:
    assert engine.offer("request", 0, BLOCKS, released.put) is None
    assert released.get(timeout=PATIENCE).reason is ReleaseReason.NOTHING_VALID


def test_withdrawn_offer_is_released_once(engine: PrefillEngine, released: SimpleQueue[Released]) -> None:
    reference = engine.offer("request", 10, BLOCKS, released.put)
    engine.withdraw(reference)
    engine.withdraw(reference)
    assert released.get(timeout=PATIENCE) == Released("request", reference.generation, ReleaseReason.WITHDRAWN)
    engine.close()
    assert released.empty()


def test_closing_releases_every_offer_the_latest_too(engine: PrefillEngine, released: SimpleQueue[Released]) -> None:
    for number in range(20):
        engine.offer(f"request {number}", 10, BLOCKS, released.put)
    engine.close()
    assert [released.get(timeout=PATIENCE).reason for _ in range(20)] == [ReleaseReason.CLOSING] * 20
    with pytest.raises(LocalProtocolError, match="closed"):
        engine.offer("request", 10, BLOCKS)


@pytest.mark.parametrize("blocks", [{"full": [8]}, {"other": [1]}], ids=str)
def test_blocks_that_it_has_not_are_refused(engine: PrefillEngine, blocks: object) -> None:
    with pytest.raises(BlockTableError):
        engine.offer("request", 10, blocks)


@pytest.mark.parametrize(
    ("request_id", "num_tokens", "lease"),
    [("request", -1, None), ("", 10, None), ("r" * 501, 10, None), ("request", 2**40, None), ("request", 10, -1.0)],
    ids=["negative tokens", "no id", "long id", "endless prompt", "negative lease"],
)
def test_offer_that_no_message_can_carry_is_refused(
    engine: PrefillEngine, request_id: str, num_tokens: int, lease: float
) -> None:
    with pytest.raises(LocalProtocolError):
        engine.offer(request_id, num_tokens, BLOCKS, lease_seconds=lease)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"bind": "0.0.0.0:0"}, ConfigurationError),
        ({"lease_seconds": 0}, LocalProtocolError),
        ({"peers": ["a/b"]}, ConfigurationError),
    ],
    ids=["open to all", "no lease", "no network"],
)
def test_engine_that_cannot_be_leaves_nothing_behind(
    network: MemoryNetwork, arguments: dict[str, object], error: type
) -> None:
    with pytest.raises(error):
        PrefillEngine(small_layout(4), transport=network.join, **arguments)
    assert network._transports == {}


def test_strangers_bytes_are_counted_and_a_stranger_is_refused(engine: PrefillEngine) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(f"tcp://{engine.address}")
    for data in (b"nonsense", b"", encode(Claim(7, "engine", key())), b"KVWV\x00\x09other version"):
        stranger.send(data)
    assert stranger.poll(PATIENCE * 1000)
    answer = decode(stranger.recv())
    assert isinstance(answer, Refused)
    assert answer.reason is RefusalReason.NOT_HANDSHAKEN
    assert stranger.poll(PATIENCE * 1000)
    assert decode(stranger.recv()).reason is RefusalReason.VERSION
    wait_until(lambda: engine.metrics().total("malformed_messages") == 2)
    context.destroy(linger=0)


def test_drained_engine_offers_nothing_new_and_says_when_all_is_released(
    engine: PrefillEngine, released: SimpleQueue[Released]
) -> None:
    reference = engine.offer("request", 10, BLOCKS, released.put)
    drained = engine.drain()
    with pytest.raises(LocalProtocolError, match="drained"):
        engine.offer("new", 10, BLOCKS, released.put)
    assert not drained.done()
    engine.withdraw(reference)
    assert drained.result(PATIENCE) is None
    assert engine.drain().result(PATIENCE) is None
