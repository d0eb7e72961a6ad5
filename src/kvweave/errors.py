"""Every error kvweave raises, split by whose fault it is.

::

    KVWeaveError
      ConfigurationError     what the user stated: a model, an engine text, a YAML file
      LayoutError            a layout that no engine could have, or that lies about its memory
      PlanError              a transfer that cannot be planned or described
        IncompatibleLayouts  two layouts that do not fit, with every reason
        BlockTableError      a request's block tables or token range do not fit the layout
      LocalProtocolError     the embedding engine called something out of order
      RemoteProtocolError    a peer sent something that it must not send
        IncompatiblePeer     a peer of another version or of another shape, with every reason
      TransferRefused        the peer said no to one request, with its reason code
      TransportError         moving bytes failed; ``kind`` says how

A message carries the field, both values and the remedy. What is the user's fault is also a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class KVWeaveError(Exception):
    """The root of every error that kvweave raises on purpose."""


class ConfigurationError(KVWeaveError, ValueError):
    """What the user stated cannot be understood or cannot exist."""


class LayoutError(KVWeaveError, ValueError):
    """A layout that no engine could have, or whose memory contradicts itself."""


class PlanError(KVWeaveError, ValueError):
    """A transfer that cannot be planned or described."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One reason why two sides do not fit: the field, both values, and what to do about it."""

    field: str
    source: str
    target: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: source has {self.source}, target has {self.target}; {self.remedy}"


class IncompatibleLayouts(PlanError):
    """Two layouts between which no transfer is possible; ``problems`` holds every reason."""

    def __init__(self, problems: Sequence[Mismatch]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class BlockTableError(PlanError):
    """Block tables or a token range that do not fit the layout they are used with."""


class LocalProtocolError(KVWeaveError):
    """The embedding engine called something out of order."""


class RemoteProtocolError(KVWeaveError):
    """A peer sent something that it must not send."""


class IncompatiblePeer(RemoteProtocolError):
    """A peer of another version, model or shape; ``problems`` holds every reason."""

    def __init__(self, problems: Sequence[Mismatch]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class TransferRefused(KVWeaveError):
    """The peer said no to one request; ``reason`` is its code."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"{message} (reason: {reason})")


class TransportErrorKind(StrEnum):
    """How moving bytes failed."""

    PEER_LOST = "peer_lost"
    NOT_REGISTERED = "not_registered"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    UNAVAILABLE = "unavailable"
    CANCELLED = "cancelled"


class TransportError(KVWeaveError):
    """Moving bytes failed; ``kind`` says how."""

    def __init__(self, kind: TransportErrorKind, message: str) -> None:
        self.kind = kind
        super().__init__(f"{message} ({kind.value})")
