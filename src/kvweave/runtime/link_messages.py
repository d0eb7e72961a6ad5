"""What a coordinator and a worker in another process say to each other, as bytes.

Commands are effects of the protocol and a few of the link's own, events are those of ``runtime.events``; both are
frozen values on either side. Layouts travel in the form of the handshake.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import RankCoordinates
from kvweave.core.portion import Portion
from kvweave.errors import Mismatch, RemoteProtocolError, TransportError, TransportErrorKind
from kvweave.protocol.description import decode_layout, encode_layout
from kvweave.protocol.effects import (
    AnyFailure,
    CancelReads,
    ConnectPeer,
    DropPeer,
    FailureReason,
    PostReads,
    RetryReads,
)
from kvweave.protocol.messages import RefusalReason
from kvweave.runtime.events import (
    Connected,
    NotConnected,
    ReadFailed,
    ReadsEnded,
    ReadStatistics,
    WorkerCommand,
    WorkerEvent,
)


@dataclass(frozen=True, slots=True)
class Adopt:
    """You are this rank (by number) of this engine, and read for it."""

    rank: int
    layout: EngineLayout


@dataclass(frozen=True, slots=True)
class Attend:
    """Whether peers may be reading from you or connecting to you."""

    busy: bool


@dataclass(frozen=True, slots=True)
class End:
    """End; ``Ended`` is the answer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker has ended: its memory is written no more, and cannot be read."""


LinkCommand = WorkerCommand | Adopt | Attend | End
LinkEvent = WorkerEvent | Ended


class _Wire(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class _Connect(_Wire, frozen=True, tag="connect"):
    address: str
    attempt: int
    layout: bytes
    agents: tuple[bytes, ...]


class _Drop(_Wire, frozen=True, tag="drop"):
    address: str


class _Post(_Wire, frozen=True, tag="post"):
    fetch: int
    address: str
    source_tables: dict[str, tuple[int, ...]]
    target_tables: dict[str, tuple[int, ...]]
    start_token: int
    num_tokens: int
    salt: int
    fence: int | None
    portion: tuple[int, bool] | None
    attended: bool


class _Retry(_Wire, frozen=True, tag="retry"):
    fetch: int
    rank: int


class _Cancel(_Wire, frozen=True, tag="cancel"):
    fetch: int


class _Adopt(_Wire, frozen=True, tag="adopt"):
    rank: int
    layout: bytes


class _Attend(_Wire, frozen=True, tag="attend"):
    busy: bool


class _End(_Wire, frozen=True, tag="end"):
    pass


class _Connected(_Wire, frozen=True, tag="connected"):
    address: str
    attempt: int
    rank: int


class _NotConnected(_Wire, frozen=True, tag="not_connected"):
    address: str
    attempt: int
    rank: int
    text: str
    problems: tuple[tuple[str, str, str, str], ...]


class _ReadFailed(_Wire, frozen=True, tag="read_failed"):
    fetch: int
    rank: int
    reason: str
    text: str
    kind: TransportErrorKind | None
    elsewhere: bool


class _ReadsEnded(_Wire, frozen=True, tag="reads_ended"):
    fetch: int
    rank: int
    completed_at: float
    bytes_from: tuple[tuple[RankCoordinates, int], ...]
    num_rows: int
    post_seconds: float
    read_seconds: float
    incomplete: dict[str, tuple[int, ...]]
    attended: bool


class _Ended(_Wire, frozen=True, tag="ended"):
    pass


_WorkerCommand = _Connect | _Drop | _Post | _Retry | _Cancel
_AnyCommand = _WorkerCommand | _Adopt | _Attend | _End
_AnyEvent = _Connected | _NotConnected | _ReadFailed | _ReadsEnded | _Ended
_COMMANDS = msgspec.msgpack.Decoder(_AnyCommand)
_EVENTS = msgspec.msgpack.Decoder(_AnyEvent)


def encode_command(command: LinkCommand) -> bytes:
    """A command as bytes."""
    return msgspec.msgpack.encode(_command_wire(command))


def decode_command(data: bytes) -> LinkCommand:
    """The command in these bytes; raises ``RemoteProtocolError`` when there is none."""
    try:
        wire: _AnyCommand = _COMMANDS.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"link: {error}") from error
    match wire:
        case _Adopt():
            return Adopt(wire.rank, decode_layout(wire.layout))
        case _Attend():
            return Attend(wire.busy)
        case _End():
            return End()
    return _worker_command(wire)


def _worker_command(wire: _WorkerCommand) -> WorkerCommand:
    match wire:
        case _Connect():
            return ConnectPeer(wire.address, wire.attempt, decode_layout(wire.layout), wire.agents)
        case _Drop():
            return DropPeer(wire.address)
        case _Post():
            portion = None if wire.portion is None else Portion(*wire.portion)
            return PostReads(**(msgspec.structs.asdict(wire) | {"portion": portion}))
        case _Retry():
            return RetryReads(wire.fetch, wire.rank)
        case _Cancel():
            return CancelReads(wire.fetch)


def encode_event(event: LinkEvent) -> bytes:
    """An event as bytes."""
    return msgspec.msgpack.encode(_event_wire(event))


def decode_event(data: bytes) -> LinkEvent:
    """The event in these bytes; raises ``RemoteProtocolError`` when there is none."""
    try:
        wire: _AnyEvent = _EVENTS.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"link: {error}") from error
    match wire:
        case _Connected():
            return Connected(wire.address, wire.attempt, wire.rank)
        case _NotConnected():
            problems = tuple(Mismatch(*problem) for problem in wire.problems)
            return NotConnected(wire.address, wire.attempt, wire.rank, wire.text, problems)
        case _ReadFailed():
            return ReadFailed(wire.fetch, wire.rank, _reason(wire.reason), wire.text, _error(wire), wire.elsewhere)
        case _ReadsEnded():
            statistics = ReadStatistics(
                dict(wire.bytes_from), wire.num_rows, wire.post_seconds, wire.read_seconds, wire.incomplete
            )
            return ReadsEnded(wire.fetch, wire.rank, wire.completed_at, statistics, wire.attended)
        case _Ended():
            return Ended()


def _command_wire(command: LinkCommand) -> _Wire:
    match command:
        case Adopt(rank, layout):
            return _Adopt(rank, encode_layout(layout))
        case Attend(busy):
            return _Attend(busy)
        case End():
            return _End()
    return _worker_command_wire(command)


def _worker_command_wire(command: WorkerCommand) -> _WorkerCommand:
    match command:
        case ConnectPeer(address, attempt, layout, agents):
            return _Connect(address, attempt, encode_layout(layout), agents)
        case DropPeer(address):
            return _Drop(address)
        case PostReads(portion=portion):
            return _Post(
                command.fetch, command.address, dict(command.source_tables), dict(command.target_tables),
                command.start_token, command.num_tokens, command.salt, command.fence,
                None if portion is None else (portion.kept_start, portion.others), command.attended,
            )  # fmt: skip
        case RetryReads(fetch, rank):
            return _Retry(fetch, rank)
        case CancelReads(fetch):
            return _Cancel(fetch)


def _event_wire(event: LinkEvent) -> _Wire:
    match event:
        case Connected(address, attempt, rank):
            return _Connected(address, attempt, rank)
        case NotConnected():
            problems = tuple((p.field, p.source, p.target, p.remedy) for p in event.problems)
            return _NotConnected(event.address, event.attempt, event.rank, event.text, problems)
        case ReadFailed():
            kind = None if event.error is None else event.error.kind
            return _ReadFailed(event.fetch, event.rank, event.reason.value, event.text, kind, event.elsewhere)
        case ReadsEnded():
            read = event.statistics
            return _ReadsEnded(
                event.fetch, event.rank, event.completed_at, tuple(read.bytes_from.items()), read.num_rows,
                read.post_seconds, read.read_seconds, dict(read.incomplete), event.attended,
            )  # fmt: skip
        case Ended():
            return _Ended()


def _reason(value: str) -> AnyFailure:
    kinds: tuple[type[FailureReason | RefusalReason], ...] = (FailureReason, RefusalReason)
    for kind in kinds:
        if value in list(kind):
            return kind(value)
    raise RemoteProtocolError(f"link: {value!r} is no reason of a failure")


def _error(wire: _ReadFailed) -> TransportError | None:
    """The transport's error again; its message ends with its kind, which the constructor adds."""
    return None if wire.kind is None else TransportError(wire.kind, wire.text.removesuffix(f" ({wire.kind.value})"))
