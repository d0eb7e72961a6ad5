"""A peer may look away once all of its agents have served reads that needed nothing, and not before."""

from __future__ import annotations

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.runtime.needs import Needs
from kvweave.transport.base import ReadHandle


def read(agent: str, attended: bool, done: bool = True) -> ReadHandle:
    handle = ReadHandle(agent)
    handle.attended = attended
    if done:
        handle.complete()
    else:
        handle.fail(TransportError(TransportErrorKind.UNAVAILABLE, "it failed"))
    return handle


def test_every_agent_counts_by_its_last_read_that_was_done() -> None:
    needs = Needs(["near", "far"])
    assert needs.note([])
    assert needs.note([read("near", attended=False)])
    assert needs.note([read("far", attended=False, done=False)])
    assert not needs.note([read("far", attended=False)])
    assert needs.note([read("near", attended=True), read("far", attended=False)])
    assert not needs.note([read("near", attended=False)])


def test_who_has_nothing_to_read_needs_nobody() -> None:
    assert not Needs([]).note([])
