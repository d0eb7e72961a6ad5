"""The decode side's fetches: from an offer's reference to delivered bytes, or to one failure report.

The rule that keeps stale bytes out: a fetch is delivered only if the prefill side granted a renewal of the lease, and
all reads of all ranks were seen complete before the moment that renewal was *sent* plus the granted lease. Both
moments are on our own clock, so no clocks are compared::

    claim and reads at s1                     renewal 2 sent at s2
    |------------- granted lease ------------|
                                              |------------- granted lease ------------|
                     reads complete at c:  deliver if some granted s + lease > c

Rules beside it:

- The claim is the first renewal, and the reads start in the same call, on the reference's word. That is safe because an
  offer that is there to be claimed has been there since its reference exists. Until the claim is granted, and is said
  to hold what the reference says, nothing is delivered; when it is refused, the reads were in vain.
- Renewals repeat at a fraction of the lease while reads last.
- One report per fetch, ``Delivered`` or ``Failed``. ``Reusable`` follows a failure once no read of any rank is left.
- What a rank could not read is read again where another replica has it, before the fetch is given up.
- Every rank of ours acknowledges once: after a delivery all of them, after a failure each when its reads are terminal
  and are not tried again. An offer that was given up unread is acknowledged by all, whether its claim was heard or not,
  so that the blocks over there are free without waiting for the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvweave.core.replicas import salt_number
from kvweave.errors import LocalProtocolError, Mismatch
from kvweave.protocol.acknowledgements import Acknowledgements
from kvweave.protocol.contacts import Contacts
from kvweave.protocol.effects import (
    AnyFailure,
    CancelReads,
    DecodeEffect,
    Delivered,
    Failed,
    FailureReason,
    ForgetPeer,
    RetryReads,
    Reusable,
    WantPeer,
)
from kvweave.protocol.fetch_entries import FetchEntries
from kvweave.protocol.fetch_entry import FetchEntry
from kvweave.protocol.messages import (
    Acknowledged,
    Claimed,
    HeartbeatReply,
    RefusalReason,
    Refused,
    Renewed,
    Revoked,
)
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.states import FetchEvent, FetchState
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

Effects = tuple[DecodeEffect, ...]


class FetchBook:
    """All fetches of one decode engine of ``num_ranks`` ranks. The caller numbers fetches and never reuses a number."""

    def __init__(self, engine_id: str, num_ranks: int, timing: Timing) -> None:
        self._ranks = range(num_ranks)
        self._timing = timing
        self._fetches = FetchEntries()
        self._contacts = Contacts(timing, salt_number(engine_id) % 2**32)
        self.acknowledgements = Acknowledgements(timing)
        self._timers: Timers[int] = Timers()
        self._retired = False

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def begun(self) -> int:
        """How many fetches are under way, those that are merely held left out."""
        return len(self._fetches.begun)

    @property
    def reading(self) -> int:
        """How many fetches have reads that may not be terminal."""
        return len(self._fetches.reading)

    @property
    def drained(self) -> bool:
        """Whether nothing is taken any more and nothing is left."""
        return self._retired and not self._fetches and not self.acknowledgements

    def state(self, number: int) -> FetchState | None:
        """Where a fetch stands; None when there is no record of it (never begun, or over)."""
        fetch = self._fetches.get(number)
        return None if fetch is None else fetch.state

    def hold(self, now: float, number: int, address: str, reference: OfferReference) -> Effects:
        """Keeps an offer alive by heartbeats until its fetch begins (or ``abort``)."""
        refused = self._admit(number, address, reference)
        if refused:
            return refused
        if address not in self._contacts:
            return (WantPeer(address),)
        self._contacts.hold(address, now)
        return ()

    def fetch(self, now: float, number: int, order: Order) -> Effects:
        """Begins a fetch, held before or not."""
        refused = () if number in self._fetches else self._admit(number, order.address, order.reference)
        fetch = self._fetches.get(number)
        if fetch is None:
            return refused
        fetch.step(FetchEvent.START)
        fetch.order = order
        self._fetches.begun.add(number)
        return self._claim(now, fetch) if fetch.address in self._contacts else (WantPeer(fetch.address),)

    def abort(self, now: float, number: int) -> Effects:
        """Ends a fetch from our side and gives its offer back; an unknown or finished one is ignored."""
        fetch = self._fetches.get(number)
        return () if fetch is None else self._give_up(now, fetch, FailureReason.ABORTED, "aborted by this engine")

    def drain(self) -> None:
        """Nothing new comes from now on but parts of what is followed already; ``drained`` when all has ended."""
        self._retired = True

    def close(self, now: float) -> Effects:
        """Gives everything up, because the engine ends."""
        self._retired = True
        return _joined(self._give_up(now, one, FailureReason.CLOSED, "engine closing") for one in self._fetches.every())

    def peer_ready(self, now: float, address: str, lease_seconds: float) -> Effects:
        """Claims what was waiting for this peer, and begins heartbeats."""
        self._contacts.ready(now, address, lease_seconds)
        owed = self.acknowledgements.peer_ready(now, address, lease_seconds)
        waiting = [fetch for fetch in self._fetches.at(address) if fetch.state is FetchState.AWAITING_PEER]
        return (*owed, *_joined(self._claim(now, fetch) for fetch in waiting))

    def peer_lost(self, now: float, address: str, text: str) -> Effects:
        """A peer that was ready is gone: what was being read fails, what was not yet claimed tries once more."""
        self._contacts.lose(address)
        self.acknowledgements.peer_gone(address)
        return _joined(self._lose(now, fetch, text) for fetch in self._fetches.at(address))

    def peer_failed(self, now: float, address: str, text: str, problems: Sequence[Mismatch]) -> Effects:
        """No connection to the peer came about: everything that waits for it fails."""
        reason = FailureReason.INCOMPATIBLE if problems else FailureReason.PEER_LOST
        fetches = self._fetches.at(address)
        for fetch in fetches:
            fetch.acknowledged = False
        self.acknowledgements.peer_gone(address)
        waiting = [fetch for fetch in fetches if fetch.state in (FetchState.QUEUED, FetchState.AWAITING_PEER)]
        return _joined(self._give_up(now, fetch, reason, text, tuple(problems)) for fetch in waiting)

    def receive(self, now: float, address: str, message: object) -> Effects:
        """What one message of a peer causes; late and repeated ones change nothing."""
        self._contacts.hear(address)
        match message:
            case Claimed():
                return self._claimed(now, address, message)
            case Renewed():
                return self._renewed(now, address, message)
            case Refused():
                return self._refused(now, address, message)
            case Revoked():
                fetch = self._fetches.of(address, message.claim)
                return () if fetch is None else self._give_up(now, fetch, FailureReason.REVOKED, message.text)
            case HeartbeatReply():
                return self._beaten(now, address, message)
            case Acknowledged():
                self.acknowledgements.confirm(address, message)
        return ()

    def reads_ended(self, now: float, number: int, rank: int, completed_at: float, attended: bool = True) -> Effects:
        """All reads of one rank are terminal, seen at ``completed_at`` by our clock; ``attended`` as of a read."""
        fetch = self._fetches.get(number)
        if fetch is None or rank not in fetch.reading:
            return ()
        if fetch.state in (FetchState.CLAIMING, FetchState.READING):
            self._contacts.note_reads(fetch.address, rank, attended)
        if rank in fetch.again and fetch.state in (FetchState.CLAIMING, FetchState.READING):
            fetch.again.discard(rank)
            fetch.step(FetchEvent.RETRY)
            return (RetryReads(number, rank),)
        fetch.reading.discard(rank)
        fetch.completed_at = max(fetch.completed_at, completed_at)
        acknowledged = self._acknowledge(now, fetch, [rank]) if fetch.state is FetchState.DRAINING else ()
        if fetch.reading:
            return acknowledged
        self._fetches.reading.discard(number)
        match fetch.state:
            case FetchState.AWAITING_PEER:
                return self._claim(now, fetch)
            case FetchState.CLAIMING:
                return ()
            case FetchState.DRAINING:
                fetch.step(FetchEvent.READS_END)
                return acknowledged + self._end(fetch) + (Reusable(number),)
        fetch.step(FetchEvent.READS_END)
        return self._settle(now, fetch)

    def read_failed(
        self, now: float, number: int, rank: int, reason: AnyFailure, text: str, elsewhere: bool = False
    ) -> Effects:
        """A read of a rank has failed; others may still be under way, ``reads_ended`` follows for each rank.

        ``elsewhere``: another replica has what this rank could not read; it is read from there when the others of this
        rank have ended.
        """
        fetch = self._fetches.get(number)
        reading = (FetchState.CLAIMING, FetchState.READING)
        if fetch is None or fetch.state not in reading or rank not in fetch.reading:
            return ()
        if elsewhere and reason is FailureReason.READ_FAILED:
            fetch.again.add(rank)
            return ()
        forget = (ForgetPeer(fetch.address, text),) if reason is FailureReason.PEER_LOST else ()
        if fetch.state is FetchState.CLAIMING:
            fetch.doubt = fetch.doubt or (reason, text)
            return forget
        return self._give_up(now, fetch, reason, text) + forget

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        books = (self._timers.next(), self._contacts.get_timer(), self.acknowledgements.get_timer())
        return min((moment for moment in books if moment is not None), default=None)

    def handle_timer(self, now: float) -> Effects:
        """Sends what is due, and gives up what was not answered in time."""
        effects = _joined(self._wake(now, number) for number in self._timers.due(now))
        effects += self.acknowledgements.handle_timer(now)
        effects += _joined(self._beat(now, address) for address in self._contacts.due(now))
        silence = f"nothing was heard for {self._timing.silence_seconds:g} s"
        return effects + tuple(ForgetPeer(peer, silence) for peer in self._contacts.silent(now))

    def _admit(self, number: int, address: str, reference: OfferReference) -> Effects:
        """A record for a new fetch; refuses one whose offer is being fetched already."""
        if number in self._fetches:
            raise LocalProtocolError(f"fetch {number}: it exists; count fetches up")
        other = self._fetches.add(FetchEntry(number, address, reference)).number
        if other != number:
            text = f"request {reference.request_id}: fetch {other} of this engine has it; wait for that one"
            return (Failed(number, FailureReason.DUPLICATE, text), Reusable(number))
        return ()

    def _claim(self, now: float, fetch: FetchEntry) -> Effects:
        """Claims and begins to read, unless reads from a peer that was lost have not ended yet."""
        lease = self._contacts.lease(fetch.address)
        if fetch.reading or lease is None or fetch.order is None:
            return ()
        fetch.step(FetchEvent.PEER_READY)
        fetch.begin(now, self._ranks, lease, self._timing)
        fetch.attended = self._contacts.attends(fetch.address, len(self._ranks))
        self._fetches.reading.add(fetch.number)
        post = fetch.post(fetch.order, self._contacts.take_salt(fetch.address))
        return (post, *self._say_claim(now, fetch))

    def _say_claim(self, now: float, fetch: FetchEntry) -> Effects:
        self._timers.set(fetch.number, min(now + fetch.resend_seconds, fetch.answer_by))
        return (fetch.claim(),)

    def _claimed(self, now: float, address: str, message: Claimed) -> Effects:
        if message.claim not in self._fetches:
            lease, owe = self._contacts.lease(address), self.acknowledgements.owe
            return owe(now, address, message.claim, message.offer, self._ranks, lease) if lease is not None else ()
        fetch = self._fetches.of(address, message.claim)
        if fetch is None or fetch.state is not FetchState.CLAIMING or fetch.renewals is None:
            return ()
        fetch.step(FetchEvent.CLAIMED)
        fetch.renewals.grant(fetch.renewals.sequence, message.lease_seconds)
        doubt = fetch.doubts(message)
        if doubt is not None:
            return self._give_up(now, fetch, *doubt)
        if not fetch.reading:
            fetch.step(FetchEvent.READS_END)
        return self._settle(now, fetch)

    def _renewed(self, now: float, address: str, message: Renewed) -> Effects:
        fetch = self._fetches.of(address, message.claim)
        if fetch is None or fetch.renewals is None or fetch.state is FetchState.CLAIMING:
            return ()
        fetch.step(FetchEvent.RENEWED)
        fetch.renewals.grant(message.sequence, message.lease_seconds)
        return self._settle(now, fetch)

    def _refused(self, now: float, address: str, message: Refused) -> Effects:
        fetch = self._fetches.of(address, message.claim)
        if fetch is None or fetch.renewals is None:
            return ()
        claiming = fetch.state is FetchState.CLAIMING
        changed = message.reason is RefusalReason.NOT_HANDSHAKEN
        if changed and claiming and not fetch.moved:
            return (ForgetPeer(address, message.text),)
        effects = self._give_up(now, fetch, message.reason, message.text, back=not claiming)
        return (*effects, ForgetPeer(address, message.text)) if changed else effects

    def _settle(self, now: float, fetch: FetchEntry) -> Effects:
        """Delivers when all reads have ended and a grant covers them, and tells the peer then; otherwise waits on."""
        if fetch.renewals is None or fetch.state not in (FetchState.READING, FetchState.AWAITING_GRANT):
            return ()
        if fetch.state is FetchState.AWAITING_GRANT and fetch.renewals.cover(fetch.completed_at):
            fetch.step(FetchEvent.COVERED)
            acknowledged = self._acknowledge(now, fetch, self._ranks)
            return (Delivered(fetch.number), *acknowledged, *self._end(fetch))
        self._timers.set(fetch.number, fetch.renewals.next_moment)
        return ()

    def _wake(self, now: float, number: int) -> Effects:
        fetch = self._fetches.get(number)
        renewals = None if fetch is None else fetch.renewals
        if fetch is None or (renewals is None and not fetch.reading):
            return ()
        if renewals is None:
            return self._give_up(now, fetch, FailureReason.PEER_LOST, f"{fetch.address} was lost, its reads do not end")
        if fetch.state is FetchState.CLAIMING:
            return self._wait_for_answer(now, fetch)
        if now >= renewals.last_moment:
            return self._give_up(now, fetch, *fetch.too_late())
        sequence = renewals.send(now)
        self._timers.set(fetch.number, renewals.next_moment)
        return (fetch.renew(sequence),)

    def _wait_for_answer(self, now: float, fetch: FetchEntry) -> Effects:
        if now >= fetch.answer_by:
            text = f"{fetch.address} did not answer within {self._timing.answer_seconds:g} s"
            return self._give_up(now, fetch, FailureReason.UNANSWERED, text)
        fetch.step(FetchEvent.REPEAT)
        fetch.resend_seconds *= 2
        return self._say_claim(now, fetch)

    def _give_up(
        self,
        now: float,
        fetch: FetchEntry,
        reason: AnyFailure,
        text: str,
        problems: tuple[Mismatch, ...] = (),
        back: bool = True,
    ) -> Effects:
        """The one place where a fetch fails: reports it once, and frees what can be freed already.

        ``back``: the offer may be alive and nobody else's, so it is given back.
        """
        was = fetch.state
        fetch.step(FetchEvent.GIVE_UP)
        if was is FetchState.DRAINING:
            return ()
        failed = Failed(fetch.number, reason, text, problems)
        self._timers.cancel(fetch.number)
        fetch.acknowledged &= back
        given_back = self._acknowledge(now, fetch, [rank for rank in self._ranks if rank not in fetch.reading])
        if fetch.reading:
            return (failed, CancelReads(fetch.number), *given_back)
        if fetch.state is FetchState.DRAINING:
            fetch.step(FetchEvent.READS_END)
        return (failed, *given_back, *self._end(fetch), Reusable(fetch.number))

    def _lose(self, now: float, fetch: FetchEntry, text: str) -> Effects:
        if fetch.state is FetchState.CLAIMING and not fetch.moved:
            fetch.step(FetchEvent.PEER_CHANGED)
            fetch.move(now + self._timing.answer_seconds)
            self._timers.set(fetch.number, fetch.answer_by)
            cancelled = (CancelReads(fetch.number),) if fetch.reading else ()
            return (*cancelled, WantPeer(fetch.address))
        if fetch.state in (FetchState.QUEUED, FetchState.AWAITING_PEER):
            return (WantPeer(fetch.address),)
        fetch.acknowledged = False
        return self._give_up(now, fetch, FailureReason.PEER_LOST, text)

    def _end(self, fetch: FetchEntry) -> Effects:
        """Drops the record, and everything with it."""
        self._fetches.drop(fetch)
        self._timers.cancel(fetch.number)
        return ()

    def _acknowledge(self, now: float, fetch: FetchEntry, ranks: Iterable[int]) -> Effects:
        if not fetch.acknowledged:
            return ()
        lease = self._contacts.lease(fetch.address)
        return self.acknowledgements.owe(now, fetch.address, fetch.number, fetch.reference.offer, ranks, lease)

    def _beat(self, now: float, address: str) -> Effects:
        queued = [fetch.reference.offer for fetch in self._fetches.at(address) if fetch.state is FetchState.QUEUED]
        return self._contacts.beat(now, address, queued)

    def _beaten(self, now: float, address: str, message: HeartbeatReply) -> Effects:
        self._contacts.note(now, address, message.lease_seconds)
        effects: Effects = ()
        for key, reason in message.missing:
            fetch = self._fetches.wants(address, key)
            if fetch is not None and fetch.state is FetchState.QUEUED:
                effects += self._give_up(now, fetch, reason, f"ended while queued: {reason.value}", back=False)
        return effects


def _joined(parts: Iterable[Effects]) -> Effects:
    return tuple(effect for part in parts for effect in part)
