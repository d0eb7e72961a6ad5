"""Traces: one span per offer and one per fetch, with the stages below it, whatever carries them further.

::

    kvweave.offer                     offered ............................... released
    kvweave.fetch   (its child)         queued | peer | claim | read (post) | grant

An offer's span is named in its reference (``traceparent`` of W3C's Trace Context, under our own key of a request's
params), so that the fetch on another machine becomes its child. Moments are seconds of the engine's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Attributes = Mapping[str, str | int | float]


class Span(Protocol):
    """Something that began; thread safe."""

    @property
    def traceparent(self) -> str | None:
        """What a child on another machine must know; None when nothing is recorded."""
        ...

    def stage(self, name: str, began_at: float, ended_at: float) -> None:
        """A stage of it that has ended."""
        ...

    def end(self, reason: str, attributes: Attributes) -> None:
        """It has ended: ``delivered``, ``acknowledged``, or why it failed."""
        ...


class Tracer(Protocol):
    """Where spans go; see ``kvweave.runtime.telemetry`` for OpenTelemetry."""

    def begin(self, name: str, parent: str | None, attributes: Attributes) -> Span:
        """Begins a span, below the parent that a ``traceparent`` names."""
        ...


class NoSpan:
    """A span that nobody records."""

    traceparent: str | None = None

    def stage(self, name: str, began_at: float, ended_at: float) -> None:
        """Does nothing."""

    def end(self, reason: str, attributes: Attributes) -> None:
        """Does nothing."""


class NoTracer:
    """Records nothing; passes the parent on."""

    def begin(self, name: str, parent: str | None, attributes: Attributes) -> Span:
        """A span that nobody records."""
        span = NoSpan()
        span.traceparent = parent
        return span
