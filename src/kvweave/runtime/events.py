"""What workers report to their coordinator, as frozen values.

What the coordinator asks of workers are effects of the protocol (``ConnectPeer``, ``DropPeer``, ``PostReads``,
``CancelReads``, ``Release``), so coordinator and workers may live in different processes: both directions are values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvweave.core.parallel import RankCoordinates
from kvweave.errors import Mismatch, TransportError
from kvweave.protocol.effects import AnyFailure, CancelReads, ConnectPeer, DropPeer, PostReads


@dataclass(frozen=True, slots=True)
class PrepareReads:
    """These reads will be wanted if the claim that is under way is granted: compute their rows meanwhile.

    Nothing is read for it. ``PostReads`` decides, and may say something else.
    """

    reads: PostReads


WorkerCommand = ConnectPeer | DropPeer | PrepareReads | PostReads | CancelReads


@dataclass(frozen=True, slots=True)
class Connected:
    """A rank is connected to all its sources of a peer, and warm."""

    address: str
    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class NotConnected:
    """A rank cannot connect, or cannot plan (then ``problems`` says why)."""

    address: str
    attempt: int
    rank: int
    text: str
    problems: tuple[Mismatch, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The first read of a rank that failed; ``ReadsEnded`` follows when the others are terminal."""

    fetch: int
    rank: int
    reason: AnyFailure
    text: str
    error: TransportError | None = None


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """What one rank read for one fetch: bytes per source rank, rows, and seconds to post and to finish.

    ``incomplete`` names, per group, target blocks that the source could not fill completely.
    """

    bytes_from: Mapping[RankCoordinates, int] = field(default_factory=dict)
    num_rows: int = 0
    post_seconds: float = 0.0
    read_seconds: float = 0.0
    incomplete: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadsEnded:
    """All reads of one rank are terminal, seen at ``completed_at`` on the machine's clock."""

    fetch: int
    rank: int
    completed_at: float
    statistics: ReadStatistics


class PrefillLink(Protocol):
    """How a prefill coordinator reaches one rank's worker: here the worker itself, elsewhere what speaks for it."""

    @property
    def agent_data(self) -> bytes:
        """What a peer needs to read from this rank."""
        ...

    def poll(self) -> object:
        """Lets peers' reads move on; must not block."""
        ...

    def attend(self, busy: bool) -> None:
        """Says whether peers may be reading or connecting; must not block."""
        ...

    def sockets(self) -> Sequence[Any]:
        """What to wait on while idle."""
        ...

    def close(self) -> None:
        """Ends the worker; its memory cannot be read any more when this returns."""
        ...


class DecodeLink(Protocol):
    """How a decode coordinator reaches one rank's worker: here the worker itself, elsewhere what speaks for it."""

    def submit(self, command: WorkerCommand) -> None:
        """Passes a command on; must not block."""
        ...

    def poll(self) -> Sequence[WorkerEvent]:
        """What the worker has reported since; must not block."""
        ...

    def sockets(self) -> Sequence[Any]:
        """What to wait on while idle."""
        ...

    def close(self) -> None:
        """Ends the worker; its target memory is written no more when this returns."""
        ...


WorkerEvent = Connected | NotConnected | ReadFailed | ReadsEnded
