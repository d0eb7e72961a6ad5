"""A fetch as its caller sees it, and how a failure becomes an error of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from kvweave.core.parallel import RankCoordinates
from kvweave.errors import (
    BlockTableError,
    IncompatiblePeer,
    KVWeaveError,
    LocalProtocolError,
    RemoteProtocolError,
    TransferRefused,
    TransportError,
    TransportErrorKind,
)
from kvweave.protocol.effects import Failed, FailureReason

_KINDS = {
    FailureReason.ABORTED: TransportErrorKind.CANCELLED,
    FailureReason.CLOSED: TransportErrorKind.CANCELLED,
    FailureReason.UNANSWERED: TransportErrorKind.TIMED_OUT,
    FailureReason.LATE: TransportErrorKind.TIMED_OUT,
    FailureReason.PEER_LOST: TransportErrorKind.PEER_LOST,
    FailureReason.READ_FAILED: TransportErrorKind.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a fetch brought.

    ``seconds`` per stage: ``queued`` (held before it began), ``peer`` (waiting for the handshake), ``claim`` (until its
    reads began, which is at once unless another handshake came between), ``post`` (rows computed and reads posted, the
    slowest rank; inside ``read``), ``read`` (until the last read was seen complete), ``grant`` (until a grant covered
    it). ``sources`` says how many bytes each of our ranks read from each prefill rank. ``incomplete`` names, per group,
    target blocks that serve this request but must never be published as a cached prefix. ``early_bytes`` of all were
    moved while the prompt was still being prefilled.
    """

    nbytes: int
    num_rows: int
    seconds: Mapping[str, float]
    sources: Mapping[RankCoordinates, Mapping[RankCoordinates, int]]
    incomplete: Mapping[str, tuple[int, ...]]
    early_bytes: int = 0


class Fetch:
    """One transfer under way. ``number`` tells it from every other of its engine."""

    def __init__(self, number: int, request_id: str, abort: Callable[[int], None]) -> None:
        self.number = number
        self.request_id = request_id
        self.failed: Failed | None = None
        self._abort = abort
        self._begun = False
        self._report: Future[Delivered] = Future()
        self._reusable: Future[None] = Future()

    def __repr__(self) -> str:
        state = (
            "under way" if not self.done() else "delivered" if self.failed is None else f"failed ({self.failed.reason})"
        )
        return f"<fetch {self.number} of {self.request_id}: {state}>"

    def done(self) -> bool:
        """Whether it was delivered or has failed."""
        return self._report.done()

    def result(self, timeout: float | None = None) -> Delivered:
        """Waits for delivery; raises why it failed: ``TransferRefused``, ``IncompatiblePeer``, ``TransportError`` ...

        Every wait of a fetch is bounded, so this ends without a ``timeout`` (seconds) too; with one, it raises
        ``TransportError`` (TIMED_OUT) when the time is over, and the fetch goes on.
        """
        try:
            return self._report.result(timeout)
        except FutureTimeoutError:
            raise TransportError(TransportErrorKind.TIMED_OUT, f"{self!r} after {timeout:g} s") from None

    def error(self) -> KVWeaveError | None:
        """Why it failed; None while under way and when delivered."""
        error = self._report.exception() if self._report.done() else None
        return error if isinstance(error, KVWeaveError) else None

    def wait_reusable(self, timeout: float | None = None) -> bool:
        """After a failure: waits until no read writes into the target blocks any more; False when time is over."""
        try:
            self._reusable.result(timeout)
        except FutureTimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Ends it from our side: it fails as cancelled, unless it is over already."""
        self._abort(self.number)

    def add_done_callback(self, callback: Callable[[Fetch], None]) -> None:
        """Calls back once delivered or failed, on the polling thread (at once when it is over already)."""
        self._report.add_done_callback(lambda _: callback(self))

    def add_reusable_callback(self, callback: Callable[[Fetch], None]) -> None:
        """Calls back once a failed fetch's target blocks may be used again; never after a delivery."""
        self._reusable.add_done_callback(lambda _: callback(self))

    def begin(self) -> None:
        """For the engine alone; raises ``LocalProtocolError`` when it was begun before."""
        if self._begun:
            raise LocalProtocolError(f"{self!r}: it was begun before; make a new one")
        self._begun = True

    def deliver(self, delivered: Delivered) -> None:
        """For the coordinator alone."""
        self._report.set_result(delivered)

    def fail(self, failed: Failed, error: KVWeaveError) -> None:
        """For the coordinator alone."""
        self.failed = failed
        self._report.set_exception(error)

    def free(self) -> None:
        """For the coordinator alone."""
        if not self._reusable.done():
            self._reusable.set_result(None)


def failure_error(failed: Failed, cause: TransportError | None) -> KVWeaveError:
    """The error that tells a caller about a failure; ``cause`` is the transport's own, if there is one."""
    if cause is not None:
        return cause
    reason, text = failed.reason, failed.text
    if failed.problems:
        return IncompatiblePeer(failed.problems)
    if isinstance(reason, FailureReason) and reason in _KINDS:
        return TransportError(_KINDS[reason], text)
    if reason is FailureReason.BLOCK_TABLES:
        return BlockTableError(text)
    if reason in (FailureReason.WRONG_REFERENCE, FailureReason.CORRUPTED):
        return RemoteProtocolError(text)
    return TransferRefused(reason.value, text)
