"""What two engines say to each other, as frozen, bounded, schema-checked records.

::

    decode engine                               prefill engine
    HandshakeRequest  ------------------------> HandshakeReply | HandshakeRefused
    Incompatible      ------------------------>                    why the reply was turned down, for its log
    Heartbeat         ------------------------> HeartbeatReply     queued requests keep their offers
    Claim             ------------------------> Claimed | Refused
    Renew             ------------------------> Renewed | Refused
    Acknowledge       ------------------------> Acknowledged       these ranks have ended, once each
                      <------------------------ Revoked            the offer ended while it was read
    ChecksumRequest   ------------------------> Checksums | Refused    debugging: is what arrived what is there?
    Follow            ------------------------> Offered ... | Ended    a prompt that is offered while it is prefilled
    Leave             ------------------------> Ended                  it is not wanted any more

A claim has a number that the decode engine chose; every answer carries it, so an answer always finds its fetch or
nothing. What has an answer is said again until the answer comes or the wait for it is over; hearing it twice is the
same as hearing it once. Every text, list and number has a bound: nothing from a peer is larger than what it says here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from kvweave.core.parallel import MOST_RANKS

MOST_ID_LETTERS = 500
MOST_TOKENS = 2**26
MOST_BEATS = 1024
MOST_CHECKSUMS = 2048
MOST_LEASE_SECONDS = 7 * 86_400.0
MOST_CHUNKS = 1024
MOST_TRANSFER_LETTERS = 200
LEAST_TRANSFER_LETTERS = 22
"""Of a transfer id, which must not be guessed: as many as 128 random bits have in base 64."""

EngineId = Annotated[str, Meta(min_length=1, max_length=200)]
RequestId = Annotated[str, Meta(min_length=1, max_length=MOST_ID_LETTERS)]
Text = Annotated[str, Meta(max_length=2000)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Rank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Ranks = Annotated[tuple[Rank, ...], Meta(min_length=1, max_length=MOST_RANKS)]
RankCount = Annotated[int, Meta(ge=1, le=MOST_RANKS)]
TokenCount = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Seconds = Annotated[float, Meta(gt=0, le=MOST_LEASE_SECONDS)]
TransferId = Annotated[str, Meta(min_length=LEAST_TRANSFER_LETTERS, max_length=MOST_TRANSFER_LETTERS)]
GroupName = Annotated[str, Meta(min_length=1, max_length=200)]
BlockTable = Annotated[tuple[Annotated[int, Meta(ge=-1, lt=2**40)], ...], Meta(max_length=MOST_TOKENS)]
BlockTables = Annotated[dict[GroupName, BlockTable], Meta(max_length=64)]
AgentBytes = Annotated[bytes, Meta(max_length=60 << 20)]
DescriptionBytes = Annotated[bytes, Meta(max_length=60 << 20)]


class EngineRole(StrEnum):
    """What an engine does in the pair."""

    PREFILL = "prefill"
    DECODE = "decode"
    OBSERVER = "observer"


class RefusalReason(StrEnum):
    """Why a prefill engine says no to one request."""

    NOT_HANDSHAKEN = "not_handshaken"
    WRONG_ENGINE = "wrong_engine"
    UNKNOWN_REQUEST = "unknown_request"
    WRONG_GENERATION = "wrong_generation"
    ALREADY_CLAIMED = "already_claimed"
    NOT_CLAIMED = "not_claimed"
    RELEASED = "released"
    LEASE_ENDED = "lease_ended"
    TOO_OLD = "too_old"
    WITHDRAWN = "withdrawn"
    CLOSING = "closing"
    VERSION = "version"
    ROLE = "role"
    WRONG_KEY = "wrong_key"
    TOO_MANY = "too_many"
    NO_CHECKSUMS = "no_checksums"


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """The root of all messages."""


class OfferKey(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One offer of one prefill engine: the request's id there, and which offer of that id it is."""

    request_id: RequestId
    generation: Number


class RankAgent(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One prefill rank's agent data; ranks count in the order of ``ParallelConfig.ranks()``."""

    rank: Rank
    data: AgentBytes


class Problem(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One ``Mismatch`` on the wire."""

    field: Text
    source: Text
    target: Text
    remedy: Text


class HandshakeRequest(Message, frozen=True, tag="handshake"):
    """Opens a connection. ``attempt`` comes back in the reply; ``ranks`` are the wanted ones, all when it is None."""

    attempt: Number
    engine_id: EngineId
    role: EngineRole
    num_ranks: RankCount
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=MOST_RANKS)] | None = None


class HandshakeReply(Message, frozen=True, tag="handshake_reply"):
    """Who answers, what it holds and where. ``description`` is decoded and checked before any agent data is touched."""

    attempt: Number
    engine_id: EngineId
    lease_seconds: Seconds
    description: DescriptionBytes
    agents: Annotated[tuple[RankAgent, ...], Meta(max_length=MOST_RANKS)]


class HandshakeRefused(Message, frozen=True, tag="handshake_refused"):
    """The handshake is turned down."""

    attempt: Number
    reason: RefusalReason
    text: Text


class Incompatible(Message, frozen=True, tag="incompatible"):
    """The decode engine turned the prefill engine down; said so that both logs name every mismatch."""

    problems: Annotated[tuple[Problem, ...], Meta(max_length=100)]


class Claim(Message, frozen=True, tag="claim"):
    """Asks for an offer. ``engine_id`` is the prefill engine that the reference names.

    ``attend``: its ranks must look after the reads until they have ended.
    """

    claim: Number
    engine_id: EngineId
    offer: OfferKey
    attend: bool = True


class Claimed(Message, frozen=True, tag="claimed"):
    """The offer is the claimant's: valid tokens, block table per group, and the lease from now on."""

    claim: Number
    offer: OfferKey
    num_tokens: TokenCount
    tables: BlockTables
    lease_seconds: Seconds


class Renew(Message, frozen=True, tag="renew"):
    """Asks for the lease to begin anew, again and again while reads last; the claim itself is the first one."""

    claim: Number
    sequence: Number
    engine_id: EngineId
    offer: OfferKey


class Renewed(Message, frozen=True, tag="renewed"):
    """The renewal of that sequence number is granted: the blocks stay for ``lease_seconds`` from its sending on."""

    claim: Number
    sequence: Number
    lease_seconds: Seconds


class Refused(Message, frozen=True, tag="refused"):
    """A claim or a renewal is refused."""

    claim: Number
    reason: RefusalReason
    text: Text


class Revoked(Message, frozen=True, tag="revoked"):
    """A claimed offer was withdrawn, or its lease has ended: no renewal will be granted.

    The blocks of a withdrawn one stay until all ranks have acknowledged.
    """

    claim: Number
    text: Text


class Acknowledge(Message, frozen=True, tag="acknowledge"):
    """All reads of these ranks of the claimant are terminal and none will follow.

    Of an offer that nobody has claimed, all ranks of an engine give it back unread. ``ranks`` are all that have ended
    and whose ``Acknowledged`` has not come, so a repeated message stands for a lost one.
    """

    claim: Number
    offer: OfferKey
    ranks: Ranks


class Acknowledged(Message, frozen=True, tag="acknowledged"):
    """The acknowledgement of these ranks was heard, whether it changed something or not."""

    claim: Number
    ranks: Ranks


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Keeps the offers of queued requests alive, one message for all of them; without any, asks for a sign of life."""

    offers: Annotated[tuple[OfferKey, ...], Meta(max_length=MOST_BEATS)]


class HeartbeatReply(Message, frozen=True, tag="heartbeat_reply"):
    """Which of the offers are gone, and why. Unasked when an offer ends that this connection kept alive.

    ``lease_seconds`` is the shortest lease of the others, so that the next heartbeat comes in time for it.
    """

    missing: Annotated[tuple[tuple[OfferKey, RefusalReason], ...], Meta(max_length=MOST_BEATS)]
    lease_seconds: Seconds | None = None


class ChecksumRequest(Message, frozen=True, tag="checksum_request"):
    """Debugging: asks for the CRC-32 of pieces of a prefill rank's memory, for rank ``asking`` of the claimant."""

    claim: Number
    offer: OfferKey
    asking: Rank
    rank: Rank
    addresses: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=MOST_CHECKSUMS)]
    sizes: Annotated[tuple[Annotated[int, Meta(ge=1, lt=2**31)], ...], Meta(max_length=MOST_CHECKSUMS)]


class Checksums(Message, frozen=True, tag="checksums"):
    """The answer, in the same order."""

    claim: Number
    asking: Rank
    sums: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**32)], ...], Meta(max_length=MOST_CHECKSUMS)]


class Follow(Message, frozen=True, tag="follow"):
    """Asks for the offers of a transfer as they come: who knows its id may read it. ``follow`` is in every answer.

    Said again from time to time, with the ``seen`` last answer's number: what came since is then said again.
    """

    follow: Number
    transfer_id: TransferId
    seen: Number


class Offered(Message, frozen=True, tag="offered"):
    """The newest offer of a followed transfer, number ``sequence``: of all tokens prefilled so far, or ``final``.

    ``prompt`` is what the prefill engine calls the prompt, for a decode engine that knows what it must be called.
    ``confirmed`` are the generations of earlier offers whose blocks are still as they were offered; what was read under
    another one is void.
    """

    follow: Number
    sequence: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    final: bool
    offer: OfferKey
    num_tokens: TokenCount
    tables: BlockTables
    confirmed: Annotated[tuple[Number, ...], Meta(max_length=MOST_CHUNKS)]
    prompt: Annotated[str, Meta(max_length=200)] = ""


class Ended(Message, frozen=True, tag="ended"):
    """Nothing more comes of what was followed."""

    follow: Number
    reason: RefusalReason
    text: Text


class Leave(Message, frozen=True, tag="leave"):
    """Follows a transfer no longer, because its request has ended: nobody will read what is still to be offered."""

    follow: Number
    transfer_id: TransferId


AnyMessage = (
    HandshakeRequest
    | HandshakeReply
    | HandshakeRefused
    | Incompatible
    | Claim
    | Claimed
    | Renew
    | Renewed
    | Refused
    | Revoked
    | Acknowledge
    | Acknowledged
    | Heartbeat
    | HeartbeatReply
    | ChecksumRequest
    | Checksums
    | Follow
    | Offered
    | Ended
    | Leave
)
