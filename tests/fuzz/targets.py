"""What reads foreign bytes, and which errors it may answer with. Anything else that comes out is a fault of ours."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

import kvweave as kw
from kvweave.cli.engine_file import read_engine_file
from kvweave.cli.engine_text import describe_engine, parse_engine
from kvweave.core.layout import Region
from kvweave.core.portion import Portion
from kvweave.errors import (
    ConfigurationError,
    KVWeaveError,
    LocalProtocolError,
    PlanError,
    RemoteProtocolError,
    TransportError,
)
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.description import decode_layout, encode_layout
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads, RetryReads
from kvweave.protocol.follow_entry import Pursuit
from kvweave.protocol.follow_entry import Target as FollowTarget
from kvweave.protocol.handshake import MOST_GUESTS
from kvweave.protocol.messages import (
    Acknowledge,
    Acknowledged,
    ChecksumRequest,
    Checksums,
    Claim,
    Claimed,
    EngineRole,
    Follow,
    HandshakeRefused,
    HandshakeReply,
    HandshakeRequest,
    Heartbeat,
    HeartbeatReply,
    Incompatible,
    Leave,
    Offered,
    OfferKey,
    Problem,
    RankAgent,
    RefusalReason,
    Refused,
    Renew,
    Renewed,
    Revoked,
)
from kvweave.protocol.messages import Ended as FollowEnded
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.runtime.events import Connected, NotConnected, ReadFailed, ReadsEnded, ReadStatistics
from kvweave.runtime.keys import KeyFile
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
from kvweave.transport.agent_data import AgentData
from kvweave.transport.memory import MemoryNetwork
from tests.fuzz.mutation import mutated_bytes, mutated_msgpack, mutated_value
from tests.protocol.examples import ADDRESS, TABLES, TARGETS, TIMING, key, reference, small_layout

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Target:
    """``make`` draws a broken input, ``read`` takes it, ``errors`` are what it may raise."""

    name: str
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


LAYOUT = small_layout(2)
TRANSFER = "a transfer id that nobody guesses"
OFFER = key()
FROM_DECODE = [
    HandshakeRequest(1, "decode-1", EngineRole.DECODE, 2, (0, 1)),
    Incompatible((Problem("dtype", "fp8", "bf16", "choose one"),)),
    Claim(1, "prefill-1", OFFER),
    Renew(1, 1, "prefill-1", OFFER),
    Acknowledge(1, OFFER, (0, 1)),
    Heartbeat((OFFER, OfferKey("other", 2))),
    ChecksumRequest(1, OFFER, 0, 0, (4096, 8192), (16, 16)),
    Follow(1, TRANSFER, 0),
    Leave(1, TRANSFER),
]
FROM_PREFILL = [
    HandshakeReply(1, "prefill-1", 30.0, encode_layout(LAYOUT), (RankAgent(0, b"a"), RankAgent(1, b"b"))),
    HandshakeRefused(1, RefusalReason.ROLE, "no"),
    Claimed(1, OFFER, 10, dict(TABLES), 30.0),
    Renewed(1, 1, 30.0),
    Refused(1, RefusalReason.UNKNOWN_REQUEST, "unknown"),
    Revoked(1, "withdrawn"),
    Acknowledged(1, (0, 1)),
    HeartbeatReply(((OFFER, RefusalReason.RELEASED),), 1.0),
    Checksums(1, 0, (5, 6)),
    Offered(2, 1, True, OfferKey("followed", 5), 10, dict(TABLES), (3, 4), "prompt"),
    FollowEnded(2, RefusalReason.WITHDRAWN, "gone"),
]
COMMANDS = [
    ConnectPeer(ADDRESS, 1, LAYOUT, (b"a", b"b")), DropPeer(ADDRESS), CancelReads(1), Adopt(0, LAYOUT), Attend(True),
    PostReads(1, ADDRESS, TABLES, TARGETS, 0, 10, 3, 4, Portion(5, others=True)), RetryReads(1, 0), End(),
]  # fmt: skip
EVENTS = [
    Connected(ADDRESS, 1, 0), NotConnected(ADDRESS, 1, 0, "no"),
    ReadFailed(1, 0, FailureReason.READ_FAILED, "lost", None, True),
    ReadsEnded(1, 0, 1.0, ReadStatistics({LAYOUT.ranks[0].coordinates: 5}, 1, 0.1, 0.2, {"full": (1,)})), Ended(),
]  # fmt: skip
ENGINE_TEXTS = ["tp=4,block=16,layout=HND", "tp=2,pp=2,dcp=2,dtype=fp8_e4m3", "tp=3,stage_layers=1/2,blocks=100"]
ENGINE_FILE = b"tp: 4\npp: 2\nblock: 16\nlayout: HND\nstages: [20, 28]\nstated:\n  head: [[0, 2], [2, 3]]\n"
KEY_FILE = b'metadata\ncurve\n    public-key = "yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"\n'


def targets() -> Iterator[Target]:
    """All decoders, the two sides of the protocol, and what the command line reads."""
    remote = (RemoteProtocolError,)
    yield Target("codec", _messages(FROM_DECODE + FROM_PREFILL), decode, remote)
    yield Target("description", _packed([encode_layout(LAYOUT), *_layouts()]), _plan_with, (RemoteProtocolError,))
    yield Target("reference", _params, _reference, remote)
    yield Target("agent data", _agent_data, AgentData.decode, (TransportError,))
    yield Target("link command", _packed([encode_command(command) for command in COMMANDS]), decode_command, remote)
    yield Target("link event", _packed([encode_event(event) for event in EVENTS]), decode_event, remote)
    yield Target("prefill side", _messages(FROM_DECODE), _prefill_side(), remote)
    yield Target("decode side", _messages(FROM_PREFILL), _decode_side, remote)
    yield Target("engine text", _bytes([text.encode() for text in ENGINE_TEXTS]), _engine_text, (ConfigurationError,))
    yield Target("engine file", _bytes([ENGINE_FILE]), _from_file(_engine_file), (ConfigurationError,))
    yield Target("key file", _bytes([KEY_FILE]), _from_file(KeyFile.read), (ConfigurationError,))
    yield Target("model config", _model_config, _from_file(kw.models.load), (KVWeaveError,))


def kept(name: str) -> list[bytes]:
    """Inputs of the corpus for one target: those that once found something."""
    return [path.read_bytes() for path in sorted(CORPUS.glob(f"{name.replace(' ', '-')}.*"))]


def _bytes(corpus: list[bytes]) -> Callable[[random.Random], bytes]:
    return lambda random: mutated_bytes(random, corpus)


def _packed(corpus: list[bytes]) -> Callable[[random.Random], bytes]:
    def make(random: random.Random) -> bytes:
        whole = random.choice(corpus)
        return mutated_bytes(random, corpus) if random.random() < 0.2 else mutated_msgpack(random, whole)

    return make


def _messages(messages: list[object]) -> Callable[[random.Random], bytes]:
    corpus = [encode(message) for message in messages]

    def make(random: random.Random) -> bytes:
        if random.random() < 0.2:
            return mutated_bytes(random, corpus)
        whole = random.choice(corpus)
        return whole[:6] + mutated_msgpack(random, whole[6:])

    return make


def _layouts() -> list[bytes]:
    shapes = {"deepseek-v4-flash": kw.ParallelConfig(tp=2), "nemotron-h-8b": kw.ParallelConfig(tp=2, pp=2)}
    return [encode_layout(kw.EngineLayout.build(kw.models.load(name), size)) for name, size in shapes.items()]


def _plan_with(data: bytes) -> None:
    """A description that decodes must also be planned with, or be refused by name."""
    layout = decode_layout(data)
    try:
        plan = kw.plan_transfer(layout, LAYOUT)
        plan.descriptors(LAYOUT.ranks[0], TABLES, TARGETS, 10)
    except PlanError:
        return


def _params(random: random.Random) -> bytes:
    value = mutated_value(random, reference().params())
    return json.dumps(value, default=str).encode()


def _reference(data: bytes) -> OfferReference:
    return OfferReference.from_params(json.loads(data), {"127.0.0.1"}.__contains__)


def _agent_data(random: random.Random) -> bytes:
    transport = MemoryNetwork().join("agent")
    transport.register([Region(0x1000, 64), Region(0x2000, 64)])
    return mutated_bytes(random, [transport.agent_data()])


def _prefill_side() -> Callable[[bytes], object]:
    side, moment = PrefillSide("prefill-1", LAYOUT, [b"a", b"b"], 30.0), iter(range(10**12))

    def read(data: bytes) -> None:
        """One side hears everything; its memory of peers stays bounded."""
        now = next(moment)
        try:
            side.offer(now, reference(generation=now))
        except LocalProtocolError as error:
            raise AssertionError("offers of one engine do not depend on its peers") from error
        side.receive(now, now % (2 * MOST_GUESTS), FROM_DECODE[0])
        side.receive(now, now % (2 * MOST_GUESTS), decode(data))
        side.handle_timer(now)

    return read


def _decode_side(data: bytes) -> None:
    """A side in the middle of a fetch hears it."""
    side = DecodeSide("decode-1", LAYOUT, TIMING)
    side.fetch(0.0, 1, Order(ADDRESS, reference(), TARGETS))
    side.follow(0.0, 2, Pursuit(ADDRESS, TRANSFER))
    side.begin_followed(0.0, 2, FollowTarget(TARGETS))
    side.receive(0.0, ADDRESS, decode(data))
    for message in FROM_PREFILL[:1]:
        side.receive(0.0, ADDRESS, message)
    for rank in range(2):
        side.connected(0.0, ADDRESS, 1, rank)
    side.receive(1.0, ADDRESS, decode(data))
    side.receive(1.0, ADDRESS, FROM_PREFILL[2])
    side.receive(1.0, ADDRESS, decode(data))
    side.handle_timer(1000.0)


def _engine_text(data: bytes) -> object:
    return parse_engine(data.decode("utf-8", "replace"))


def _engine_file(path: Path) -> object:
    return describe_engine(read_engine_file(path))


def _from_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    folder = Path(tempfile.mkdtemp(prefix="kvweave-fuzz-"))

    def write_and_read(data: bytes) -> object:
        path = folder / "config.json"
        path.write_bytes(data)
        return read(path)

    return write_and_read


def _model_config(random: random.Random) -> bytes:
    name = random.choice(("deepseek-v4-flash", "nemotron-h-8b", "gemma-3-27b", "llama-3.1-8b"))
    whole = json.loads((Path(kw.models.__file__).parent / "presets" / f"{name}.json").read_text())["config"]
    if random.random() < 0.2:
        return mutated_bytes(random, [json.dumps(whole).encode()])
    return msgspec.json.encode(mutated_value(random, whole), enc_hook=str)
