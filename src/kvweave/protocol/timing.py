"""How long the two sides wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvweave.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Timing:
    """Bounds on every wait, in seconds.

    ``handshake_seconds`` from the first word to warm connections; ``answer_seconds`` for one answer on the control
    channel; ``read_seconds`` for the reads of one fetch, renewals or not. ``renew_fraction`` of a lease passes between
    two renewals or heartbeats. ``retry_seconds`` is how long an incompatible peer is not asked again. What is not
    answered is said again after ``resend_seconds``, and each time twice as long after the last. A ready peer that
    leaves a heartbeat unanswered and says nothing else for ``silence_seconds`` is lost. ``progress_seconds`` is how
    long a followed transfer may bring no new offer.
    """

    handshake_seconds: float = 20.0
    answer_seconds: float = 5.0
    read_seconds: float = 120.0
    renew_fraction: float = 1 / 3
    retry_seconds: float = 10.0
    resend_seconds: float = 1.0
    silence_seconds: float = 10.0
    progress_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_seconds")):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigurationError(f"{name}: {value} is not a number of seconds above 0")
        if not 0 < self.renew_fraction < 1:
            raise ConfigurationError(f"renew_fraction: {self.renew_fraction} must lie between 0 and 1")
