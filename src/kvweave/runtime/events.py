"""What workers report to their coordinator, as frozen values.

What the coordinator asks of workers are effects of the protocol (``ConnectPeer``, ``DropPeer``, ``PostReads``,
``RetryReads``, ``CancelReads``), so coordinator and workers may live in different processes: all are values.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from kvweave.core.parallel import RankCoordinates
from kvweave.errors import Mismatch, TransportError
from kvweave.protocol.effects import AnyFailure, CancelReads, ConnectPeer, DropPeer, PostReads, RetryReads

WorkerCommand = ConnectPeer | DropPeer | PostReads | RetryReads | CancelReads


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
    """The first read of a rank that failed; ``ReadsEnded`` follows when the others are terminal.

    ``elsewhere``: another replica has what failed; ``RetryReads`` lets the rank read it from there.
    """

    fetch: int
    rank: int
    reason: AnyFailure
    text: str
    error: TransportError | None = None
    elsewhere: bool = False


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

    def joined(self, later: ReadStatistics) -> ReadStatistics:
        """Together with what the rank read later; the seconds are those of the later reads."""
        bytes_from = dict(self.bytes_from)
        for source, nbytes in later.bytes_from.items():
            bytes_from[source] = bytes_from.get(source, 0) + nbytes
        incomplete = {group: tuple(blocks) for group, blocks in self.incomplete.items()} | dict(later.incomplete)
        return replace(later, bytes_from=bytes_from, num_rows=self.num_rows + later.num_rows, incomplete=incomplete)

    def instead(self, failed: Container[RankCoordinates], again: Iterable[ReadStatistics]) -> ReadStatistics:
        """With what was read again from other sources instead of the failed ones."""
        bytes_from = {source: nbytes for source, nbytes in self.bytes_from.items() if source not in failed}
        num_rows = self.num_rows
        for part in again:
            num_rows += part.num_rows
            for source, nbytes in part.bytes_from.items():
                bytes_from[source] = bytes_from.get(source, 0) + nbytes
        return replace(self, bytes_from=bytes_from, num_rows=num_rows)


@dataclass(frozen=True, slots=True)
class ReadsEnded:
    """All reads of one rank are terminal, seen at ``completed_at`` on the machine's clock.

    ``attended``: they needed the source's help, or would have been better with it.
    """

    fetch: int
    rank: int
    completed_at: float
    statistics: ReadStatistics
    attended: bool = True


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
