"""A fetch's handle, and the error of every kind of failure."""

from __future__ import annotations

import pytest

from kvweave.errors import (
    BlockTableError,
    IncompatiblePeer,
    LocalProtocolError,
    Mismatch,
    RemoteProtocolError,
    TransferRefused,
    TransportError,
    TransportErrorKind,
)
from kvweave.protocol.effects import AnyFailure, Failed, FailureReason
from kvweave.protocol.messages import RefusalReason
from kvweave.runtime.handle import Delivered, Fetch, failure_error

DELIVERED = Delivered(0, 0, {}, {}, {})


@pytest.fixture
def fetch() -> Fetch:
    return Fetch(7, "request", lambda number: None)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (FailureReason.ABORTED, TransportErrorKind.CANCELLED), (FailureReason.CLOSED, TransportErrorKind.CANCELLED),
        (FailureReason.UNANSWERED, TransportErrorKind.TIMED_OUT), (FailureReason.LATE, TransportErrorKind.TIMED_OUT),
        (FailureReason.PEER_LOST, TransportErrorKind.PEER_LOST),
        (FailureReason.READ_FAILED, TransportErrorKind.UNAVAILABLE),
    ],
)  # fmt: skip
def test_what_went_wrong_on_the_way_is_a_transport_error(reason: FailureReason, kind: TransportErrorKind) -> None:
    error = failure_error(Failed(7, reason, "text"), None)
    assert isinstance(error, TransportError)
    assert (error.kind, "text" in str(error)) == (kind, True)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (RefusalReason.RELEASED, TransferRefused), (FailureReason.REVOKED, TransferRefused),
        (FailureReason.DUPLICATE, TransferRefused), (FailureReason.BLOCK_TABLES, BlockTableError),
        (FailureReason.WRONG_REFERENCE, RemoteProtocolError),
    ],
)  # fmt: skip
def test_other_failures_have_the_error_of_whose_fault_they_are(reason: AnyFailure, error: type) -> None:
    assert type(failure_error(Failed(7, reason, "text"), None)) is error


def test_misfit_carries_every_reason() -> None:
    problem = Mismatch("dtype", "a", "b", "c")
    error = failure_error(Failed(7, FailureReason.INCOMPATIBLE, "", (problem,)), None)
    assert isinstance(error, IncompatiblePeer)
    assert error.problems == (problem,)


def test_error_of_the_transport_itself_is_passed_on() -> None:
    cause = TransportError(TransportErrorKind.REJECTED, "no")
    assert failure_error(Failed(7, FailureReason.READ_FAILED, ""), cause) is cause


def test_result_waits_no_longer_than_told_and_the_fetch_goes_on(fetch: Fetch) -> None:
    with pytest.raises(TransportError, match="under way") as caught:
        fetch.result(0.001)
    assert caught.value.kind is TransportErrorKind.TIMED_OUT
    fetch.deliver(DELIVERED)
    assert fetch.result() is DELIVERED


def test_delivered_fetch_has_no_error(fetch: Fetch) -> None:
    assert (fetch.done(), fetch.error()) == (False, None)
    fetch.deliver(DELIVERED)
    assert (fetch.done(), fetch.error(), "delivered" in repr(fetch)) == (True, None, True)


def test_failed_fetch_tells_its_reason_and_when_blocks_are_free(fetch: Fetch) -> None:
    called: list[Fetch] = []
    fetch.add_reusable_callback(called.append)
    error = LocalProtocolError("no")
    fetch.fail(Failed(7, FailureReason.LATE, "no"), error)
    assert (fetch.error(), "failed (late)" in repr(fetch)) == (error, True)
    assert not fetch.wait_reusable(0.001)
    fetch.free()
    fetch.free()
    assert fetch.wait_reusable()
    assert called == [fetch]


def test_fetch_is_begun_once(fetch: Fetch) -> None:
    fetch.begin()
    with pytest.raises(LocalProtocolError, match="begun before"):
        fetch.begin()
