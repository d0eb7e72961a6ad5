"""One fetch of the decode side: what it wants, where it stands, and which ranks still read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvweave.protocol.effects import AnyFailure, FailureReason, PostReads, Send
from kvweave.protocol.messages import Claim, Claimed, Renew
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.renewal import Renewals
from kvweave.protocol.states import FETCH, FetchEvent, FetchState
from kvweave.protocol.timing import Timing


@dataclass(slots=True)
class FetchEntry:
    """The record of one fetch.

    ``moved``: its claim was sent once more, to the engine that took the first one's place. ``acknowledged``: its ranks
    tell the peer when their reads have ended; False for one that is gone or never granted anything. ``attended``: the
    peer was asked to look after the reads. ``reading``: our ranks whose reads may not be terminal; those of ``again``
    have failed and will be tried once more. ``doubt``: what our ranks find wrong with a reference whose claim is not
    answered yet. ``asked`` renewals went to engines that are gone. A claim is repeated after ``resend_seconds`` and
    answered until ``answer_by``, or given up.
    """

    number: int
    address: str
    reference: OfferReference
    state: FetchState = FETCH.initial
    order: Order | None = None
    moved: bool = False
    acknowledged: bool = True
    attended: bool = True
    reading: set[int] = field(default_factory=set)
    again: set[int] = field(default_factory=set)
    doubt: tuple[AnyFailure, str] | None = None
    answer_by: float = 0.0
    resend_seconds: float = 0.0
    completed_at: float = 0.0
    renewals: Renewals | None = None
    asked: int = 0

    def step(self, event: FetchEvent) -> None:
        """Moves on by the table."""
        self.state = FETCH.step(self.state, event)

    def begin(self, now: float, ranks: Iterable[int], lease_seconds: float, timing: Timing) -> None:
        """Everything is asked and read from now on."""
        self.answer_by = now + timing.answer_seconds
        self.resend_seconds = timing.resend_seconds
        self.reading = set(ranks)
        self.renewals = Renewals(now, lease_seconds, timing, self.asked)

    def move(self, reads_end_by: float) -> None:
        """What was asked of the engine that is gone is over; reads of it may last, but not for ever."""
        self.moved = True
        self.answer_by = reads_end_by
        self.again.clear()
        self.doubt = None
        if self.renewals is not None:
            self.asked, self.renewals = self.renewals.sequence, None

    def claim(self) -> Send:
        """Asks for the offer."""
        return Send(self.address, Claim(self.number, self.reference.engine_id, self.reference.offer, self.attended))

    def renew(self, sequence: int) -> Send:
        """Asks for the lease to begin anew."""
        return Send(self.address, Renew(self.number, sequence, self.reference.engine_id, self.reference.offer))

    def post(self, order: Order, salt: int) -> PostReads:
        """What every rank reads if the reference is right, which the claim's answer will say."""
        offered = self.reference
        return PostReads(
            self.number, self.address, offered.tables, order.tables, order.start_token, offered.num_tokens, salt,
            order.fence, order.portion, self.attended,
        )  # fmt: skip

    def doubts(self, claimed: Claimed) -> tuple[AnyFailure, str] | None:
        """Why the reference does not hold, by what the prefill engine says of its offer or else by our own ranks."""
        difference = self.reference.difference(claimed)
        return self.doubt if difference is None else (FailureReason.WRONG_REFERENCE, difference)

    def too_late(self) -> tuple[FailureReason, str]:
        """Why nothing is waited for any more."""
        if self.renewals is None or self.renewals.granted_until is None:
            return FailureReason.UNANSWERED, f"{self.address} granted no renewal"
        return FailureReason.LATE, "the reads were not complete within read_seconds, or before the granted lease ended"
