from __future__ import annotations

import itertools

import pytest

from kvweave.errors import LocalProtocolError, TransportError, TransportErrorKind
from kvweave.transport.base import READ_TRANSITIONS, ReadEvent, ReadHandle, ReadState, failed_read, peer_lost

LOST = TransportError(TransportErrorKind.PEER_LOST, "first")
CANCELLED = TransportError(TransportErrorKind.CANCELLED, "second")


def handle_in(state: ReadState) -> ReadHandle:
    handle = ReadHandle("peer")
    match state:
        case ReadState.DONE:
            handle.complete()
        case ReadState.FAILED:
            handle.fail(LOST)
        case ReadState.CANCELLING:
            handle.cancel(LOST)
    return handle


def happen(handle: ReadHandle, event: ReadEvent) -> None:
    match event:
        case ReadEvent.COMPLETE:
            handle.complete()
        case ReadEvent.FAIL:
            handle.fail(CANCELLED)
        case ReadEvent.CANCEL:
            handle.cancel(CANCELLED)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ReadState, ReadEvent)))
def test_every_state_meets_every_event_as_the_table_says(state: ReadState, event: ReadEvent) -> None:
    handle = handle_in(state)
    if (state, event) in READ_TRANSITIONS:
        happen(handle, event)
        assert handle.state is READ_TRANSITIONS[state, event]
    else:
        with pytest.raises(LocalProtocolError, match=f"{event.value} cannot happen while {state.value}"):
            happen(handle, event)
        assert handle.state is state


@pytest.mark.parametrize("event", list(ReadEvent))
def test_a_terminal_state_is_never_left(event: ReadEvent) -> None:
    for state in ReadState:
        if state.terminal:
            assert READ_TRANSITIONS.get((state, event), state) is state


@pytest.mark.parametrize("state", [state for state in ReadState if not state.terminal])
def test_a_read_can_end_from_every_other_state(state: ReadState) -> None:
    assert READ_TRANSITIONS[state, ReadEvent.COMPLETE].terminal
    assert READ_TRANSITIONS[state, ReadEvent.FAIL].terminal


def test_the_first_error_stays() -> None:
    handle = ReadHandle("peer")
    handle.cancel(LOST)
    handle.cancel(CANCELLED)
    handle.fail(CANCELLED)
    assert handle.error is LOST


def test_cancelling_a_done_read_gives_it_no_error() -> None:
    handle = handle_in(ReadState.DONE)
    handle.cancel(CANCELLED)
    assert handle.error is None


def test_a_handle_shows_its_peer_state_and_error() -> None:
    assert repr(handle_in(ReadState.IN_PROGRESS)) == "<read from peer: in_progress>"
    assert repr(handle_in(ReadState.FAILED)) == "<read from peer: failed, first (peer_lost)>"


def test_a_read_that_failed_before_it_began_is_terminal() -> None:
    handle = failed_read("peer", peer_lost("peer"))
    assert handle.state is ReadState.FAILED
    assert handle.error is not None
    assert handle.error.kind is TransportErrorKind.PEER_LOST
