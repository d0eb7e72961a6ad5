"""Traces for OpenTelemetry: our spans as its spans. The only home of ``opentelemetry`` (extra ``tracing``).

::

    from kvweave.runtime.telemetry import OpenTelemetryTracer

    engine = DecodeEngine(..., tracer=OpenTelemetryTracer())

What exports them is set up by the program around it, as ever with OpenTelemetry.
"""

from __future__ import annotations

import time

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvweave.runtime.clock import Clock, boot_time
from kvweave.runtime.tracing import Attributes, Span
from kvweave.version import __version__

_GOOD = ("delivered", "acknowledged")
_PROPAGATOR = TraceContextTextMapPropagator()


class OpenTelemetryTracer:
    """A ``Tracer`` over a provider (the global one unless given). ``clock`` is the engine's."""

    def __init__(self, provider: trace.TracerProvider | None = None, clock: Clock = boot_time) -> None:
        self._tracer = trace.get_tracer("kvweave", __version__, provider)
        self._clock = clock

    def begin(self, name: str, parent: str | None, attributes: Attributes) -> Span:
        """See ``Tracer``."""
        context = None if parent is None else _PROPAGATOR.extract({"traceparent": parent})
        started = self._tracer.start_span(name, context, attributes=_named(attributes))
        return _OpenTelemetrySpan(self._tracer, started, self._clock)


class _OpenTelemetrySpan:
    def __init__(self, tracer: trace.Tracer, span: trace.Span, clock: Clock) -> None:
        self._tracer = tracer
        self._span = span
        self._clock = clock

    @property
    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent")

    def stage(self, name: str, began_at: float, ended_at: float) -> None:
        context = trace.set_span_in_context(self._span)
        child = self._tracer.start_span(f"kvweave.{name}", context, start_time=self._nanoseconds(began_at))
        child.end(self._nanoseconds(ended_at))

    def end(self, reason: str, attributes: Attributes) -> None:
        self._span.set_attributes({"kvweave.reason": reason, **_named(attributes)})
        if reason not in _GOOD:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, reason))
        self._span.end()

    def _nanoseconds(self, moment: float) -> int:
        """A moment of the engine's clock as OpenTelemetry counts: since 1970."""
        return time.time_ns() - int((self._clock() - moment) * 1e9)


def _named(attributes: Attributes) -> dict[str, str | int | float]:
    return {f"kvweave.{name}": value for name, value in attributes.items()}
