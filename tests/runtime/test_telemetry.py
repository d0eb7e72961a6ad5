"""OpenTelemetry: a request is one trace over both engines, with its stages and its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvweave.errors import KVWeaveError
from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, joined, wait_until

sdk = pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

from kvweave.runtime.telemetry import OpenTelemetryTracer  # noqa: E402


@pytest.fixture
def recording() -> tuple[OpenTelemetryTracer, Callable[[], dict[str, object]]]:
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTelemetryTracer(provider)
    return tracer, lambda: {span.name: span for span in exporter.get_finished_spans()}


def test_request_is_one_trace_with_its_stages(recording: tuple) -> None:
    tracer, spans = recording
    with joined(tracer=tracer) as pair:
        pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        wait_until(lambda: {"kvweave.offer", "kvweave.fetch"} <= set(spans()))
    found = spans()
    assert len({span.context.trace_id for span in found.values()}) == 1
    assert found["kvweave.fetch"].parent.span_id == found["kvweave.offer"].context.span_id
    for stage in ("queued", "peer", "claim", "read", "grant"):
        assert found[f"kvweave.{stage}"].parent.span_id == found["kvweave.fetch"].context.span_id
    assert found["kvweave.pinned"].parent.span_id == found["kvweave.offer"].context.span_id
    assert found["kvweave.offer"].attributes["kvweave.reason"] == "acknowledged"


def test_failure_has_its_reason_and_is_an_error(recording: tuple) -> None:
    tracer, spans = recording
    with joined(tracer=tracer) as pair, pytest.raises(KVWeaveError):
        pair.decode.fetch(replace(pair.offer(), generation=5), TARGET_BLOCKS).result(PATIENCE)
    failed = spans()["kvweave.fetch"]
    assert failed.attributes["kvweave.reason"] == "wrong_generation"
    assert not failed.status.is_ok


def test_trace_of_the_client_goes_on(recording: tuple) -> None:
    tracer, _ = recording
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert (tracer.begin("kvweave.offer", parent, {}).traceparent or "").split("-")[1] == parent.split("-")[1]
