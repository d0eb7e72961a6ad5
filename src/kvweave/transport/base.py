"""The transport: pulls bytes from a peer's registered memory into ours, whatever moves them.

One side registers memory and hands out its agent data; the other connects with that data and reads. Nothing is ever
written into a peer::

    source                                  target
    register(regions)
    agent_data()  ----- control channel --> connect(agent_data) -> read handle, done once the connection is warm
    progress() ...                          read(peer, rows)    -> read handle
    progress() ...                          progress() until handle.state is terminal

Rules that every implementation keeps (``kvweave.testing.transport_contract`` holds them to it):

- No call blocks on a peer and none knows the time: timeouts are the caller's. Bytes move only inside ``progress()``,
  which both sides must call, also while a connection is being made.
- One thread owns a transport: every method is called from it. ``ReadHandle.state`` and ``.error`` may be read by any.
- ``read`` and ``connect`` raise for the caller's own mistakes alone. Whatever goes wrong with moving bytes ends in the
  handle, as ``FAILED`` with a ``TransportError``.
- ``DONE`` means that every byte is in the target memory. ``DONE`` and ``FAILED`` are terminal: from then on the read
  writes nowhere, so its target memory may be used again. A failed read may have written a part of its target ranges.
- A peer's death is seen by reading from it, never by asking: a stopped process may still be read, a dead one is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from kvweave.errors import LocalProtocolError, TransportError, TransportErrorKind
from kvweave.transport.regions import MemoryRegion
from kvweave.transport.rows import ReadRows

__all__ = [
    "READ_TRANSITIONS", "MemoryRegion", "ReadEvent", "ReadHandle", "ReadRows", "ReadState", "Transport",
    "failed_read", "peer_lost",
]  # fmt: skip


class ReadState(StrEnum):
    """Where a read stands."""

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"

    @property
    def terminal(self) -> bool:
        """Whether the read writes nowhere from now on."""
        return self in (ReadState.DONE, ReadState.FAILED)


class ReadEvent(StrEnum):
    """What can happen to a read."""

    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


READ_TRANSITIONS: Mapping[tuple[ReadState, ReadEvent], ReadState] = MappingProxyType(
    {
        (ReadState.IN_PROGRESS, ReadEvent.COMPLETE): ReadState.DONE,
        (ReadState.IN_PROGRESS, ReadEvent.FAIL): ReadState.FAILED,
        (ReadState.IN_PROGRESS, ReadEvent.CANCEL): ReadState.CANCELLING,
        (ReadState.CANCELLING, ReadEvent.COMPLETE): ReadState.FAILED,
        (ReadState.CANCELLING, ReadEvent.FAIL): ReadState.FAILED,
        (ReadState.CANCELLING, ReadEvent.CANCEL): ReadState.CANCELLING,
        (ReadState.DONE, ReadEvent.CANCEL): ReadState.DONE,
        (ReadState.FAILED, ReadEvent.CANCEL): ReadState.FAILED,
    }
)
"""The life of a read; a pair that is absent is a mistake of the transport itself."""


class ReadHandle:
    """One read, as its caller sees it: the peer it reads from, its state, and why it fails or is being cancelled.

    ``attended``: it needs the peer's progress, or would be faster with it.

    The methods are for transports alone; callers look at ``state`` and ``error``.
    """

    __slots__ = ("attended", "error", "peer", "state")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.state = ReadState.IN_PROGRESS
        self.error: TransportError | None = None
        self.attended = True

    def __repr__(self) -> str:
        reason = f", {self.error}" if self.error else ""
        return f"<read from {self.peer}: {self.state.value}{reason}>"

    def complete(self) -> None:
        """Ends the read: DONE, or FAILED when it was being cancelled."""
        self._apply(ReadEvent.COMPLETE)

    def fail(self, error: TransportError) -> None:
        """Ends the read as FAILED; the first error that it met stays."""
        self.error = self.error or error
        self._apply(ReadEvent.FAIL)

    def cancel(self, error: TransportError) -> None:
        """Dooms the read to fail, once nothing of it can write any more; a terminal one stays as it is."""
        if not self.state.terminal:
            self.error = self.error or error
        self._apply(ReadEvent.CANCEL)

    def _apply(self, event: ReadEvent) -> None:
        following = READ_TRANSITIONS.get((self.state, event))
        if following is None:
            raise LocalProtocolError(f"read from {self.peer}: {event.value} cannot happen while {self.state.value}")
        self.state = following


def failed_read(peer: str, error: TransportError) -> ReadHandle:
    """A read that failed before it began; for transports alone."""
    handle = ReadHandle(peer)
    handle.fail(error)
    return handle


def peer_lost(peer: str) -> TransportError:
    """The error of every read from a peer that is not, or not any more, connected."""
    return TransportError(TransportErrorKind.PEER_LOST, f"peer {peer}: it is not connected or is gone; connect again")


class Transport(Protocol):
    """Pulls bytes out of peers' registered memory; see the module for the rules."""

    def register(self, regions: Sequence[MemoryRegion]) -> None:
        """Makes memory readable by peers and usable as a target; before ``agent_data()`` is handed out.

        Raises ``TransportError`` (REJECTED) when regions overlap, or the memory cannot be registered.
        """
        ...

    def agent_data(self) -> bytes:
        """What a peer needs for ``connect``. Whoever holds it may read the registered memory."""
        ...

    def connect(self, agent_data: bytes) -> ReadHandle:
        """Adds the peer that this data came from, and warms the connection; the handle's ``peer`` is its name.

        The handle is done once the first bytes came through. Reads may be posted at once. Connecting again is harmless.
        Raises ``TransportError`` (REJECTED) when the data is malformed, or names a peer that is connected by other data
        or whose last reads are still ending.
        """
        ...

    def read(self, peer: str, rows: ReadRows, attended: bool = True) -> ReadHandle:
        """Starts to copy the rows from the peer's memory; zero rows are done at once.

        ``attended``: the peer makes progress often meanwhile. It must unless earlier reads said that they need none.

        Fails PEER_LOST when the peer is not connected, NOT_REGISTERED when a row lies outside one registered region.
        """
        ...

    def cancel(self, handle: ReadHandle) -> None:
        """Starts no more of a read: it becomes FAILED (CANCELLED) once what is under way has ended."""
        ...

    def progress(self) -> int:
        """Moves what can be moved, for reads in both directions; returns how many of our reads are not yet terminal.

        Raises ``TransportError`` only when the transport as a whole is broken.
        """
        ...

    def disconnect(self, peer: str) -> None:
        """Forgets a peer; its reads fail PEER_LOST once what is under way has ended. An unknown peer is ignored."""
        ...

    def close(self) -> None:
        """Ends every read at once (UNAVAILABLE), forgets peers and memory. Afterwards only harmless calls are allowed:
        ``close``, ``cancel``, ``disconnect`` and ``progress`` (0); the others raise ``LocalProtocolError``.
        """
        ...
