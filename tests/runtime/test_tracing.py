"""Spans that nobody records cost nothing and lose no trace."""

from __future__ import annotations

from kvweave.runtime.tracing import NoTracer
from tests.runtime.pair import joined

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_nothing_is_recorded_and_the_parent_passed_on() -> None:
    span = NoTracer().begin("kvweave.offer", PARENT, {})
    span.stage("pinned", 1.0, 2.0)
    span.end("released", {"nbytes": 5})
    assert span.traceparent == PARENT
    assert NoTracer().begin("kvweave.offer", None, {}).traceparent is None


def test_a_requests_own_trace_goes_through_its_params() -> None:
    with joined() as pair:
        reference = pair.prefill.offer("traced", 40, {"full": [9, 3, 12, 0, 7]}, traceparent=PARENT)
        assert reference is not None
        assert reference.params()["kvweave"]["traceparent"] == PARENT
