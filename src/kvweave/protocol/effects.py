"""What the protocol asks its surroundings to do, as frozen values.

The books of this package decide and return effects; the runtime (or a simulation) carries them out in order. An
address is where a prefill engine's control channel listens, ``host:port``; a connection is one decode engine's end of
that channel, as the prefill side's socket names it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvweave.core.layout import EngineLayout
from kvweave.core.portion import Portion
from kvweave.errors import Mismatch
from kvweave.protocol.messages import AnyMessage, OfferKey, RefusalReason
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference


class ReleaseReason(StrEnum):
    """Why an offer's blocks may be freed."""

    ACKNOWLEDGED = "acknowledged"
    LEASE_ENDED = "lease_ended"
    WITHDRAWN = "withdrawn"
    NOTHING_VALID = "nothing_valid"
    CLOSING = "closing"


class FailureReason(StrEnum):
    """Why a fetch failed, beside the reasons of a peer's refusal (``RefusalReason``)."""

    ABORTED = "aborted"
    UNANSWERED = "unanswered"
    LATE = "late"
    PEER_LOST = "peer_lost"
    INCOMPATIBLE = "incompatible"
    READ_FAILED = "read_failed"
    CORRUPTED = "corrupted"
    BLOCK_TABLES = "block_tables"
    WRONG_REFERENCE = "wrong_reference"
    REVOKED = "revoked"
    DUPLICATE = "duplicate"
    CLOSED = "closed"


AnyFailure = FailureReason | RefusalReason


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message: to an address from the decode side, to a connection from the prefill side."""

    to: Hashable
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class Release:
    """The prefill side may free the blocks of this offer. Comes exactly once per offer."""

    offer: OfferKey
    reason: ReleaseReason


@dataclass(frozen=True, slots=True)
class Greeted:
    """A decode engine opened a connection; for the log."""

    engine_id: str


@dataclass(frozen=True, slots=True)
class TurnedDown:
    """A decode engine finds us incompatible; for the log."""

    engine_id: str
    problems: tuple[Mismatch, ...]


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """Every rank plans, connects to the sources that it may read from, and warms the connections.

    ``agents`` holds every prefill rank's agent data, in the order of the layout's ranks. Answers name the ``attempt``.
    """

    address: str
    attempt: int
    layout: EngineLayout
    agents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DropPeer:
    """Close the channel to this address and forget its connections."""

    address: str


@dataclass(frozen=True, slots=True)
class PeerReady:
    """The peer is handshaken, compatible and warm."""

    address: str
    engine_id: str
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer that was ready is not any more."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class PeerFailed:
    """No connection came about; ``problems`` is not empty when the peer does not fit."""

    address: str
    text: str
    problems: tuple[Mismatch, ...] = ()


@dataclass(frozen=True, slots=True)
class WantPeer:
    """A fetch needs this peer."""

    address: str


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """A fetch learned that this peer is gone or is another one now."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class HoldPart:
    """A followed transfer keeps its final offer alive, under the number of the fetch to come."""

    fetch: int
    address: str
    reference: OfferReference


@dataclass(frozen=True, slots=True)
class FetchPart:
    """A followed transfer begins the fetch of an offer; comes out too, for the records."""

    follow: int
    fetch: int
    order: Order


@dataclass(frozen=True, slots=True)
class AbortPart:
    """A followed transfer ends one of its fetches."""

    fetch: int


@dataclass(frozen=True, slots=True)
class PostReads:
    """Every rank computes its rows and posts its reads, now. Tables give logical block ids per group.

    ``portion`` says which part of the request moves, None that it moves at once. Reads with a ``fence`` begin only when
    the rank's own engine says of that number that their target memory may be written. ``attended``: the source's ranks
    look after them.
    """

    fetch: int
    address: str
    source_tables: Mapping[str, tuple[int, ...]]
    target_tables: Mapping[str, tuple[int, ...]]
    start_token: int
    num_tokens: int
    salt: int
    fence: int | None = None
    portion: Portion | None = None
    attended: bool = True


@dataclass(frozen=True, slots=True)
class RetryReads:
    """This rank reads what failed once more, from other replicas, and reports as it did for ``PostReads``."""

    fetch: int
    rank: int


@dataclass(frozen=True, slots=True)
class CancelReads:
    """Every rank ends its reads of this fetch as soon as it can, and reports when they are terminal."""

    fetch: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """All wanted bytes are in the target blocks, and were read under a granted lease. The report of a fetch."""

    fetch: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The fetch has failed. The report of a fetch: there is never a second one."""

    fetch: int
    reason: AnyFailure
    text: str
    problems: tuple[Mismatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Reusable:
    """No read writes into the target blocks of this failed fetch any more. Follows ``Failed``, exactly once."""

    fetch: int


@dataclass(frozen=True, slots=True)
class Drained:
    """This side takes nothing new, and what it had has ended. Comes once after ``drain``."""


PrefillEffect = Send | Release | Greeted | TurnedDown | Drained
DecodeEffect = (
    Send
    | ConnectPeer
    | DropPeer
    | PeerReady
    | PeerLost
    | PeerFailed
    | WantPeer
    | ForgetPeer
    | HoldPart
    | FetchPart
    | AbortPart
    | PostReads
    | RetryReads
    | CancelReads
    | Delivered
    | Failed
    | Reusable
    | Drained
)
