"""The decode side's fetches: from an offer's reference to delivered bytes, or to one failure report.

The rule that keeps stale bytes out: a fetch is delivered only if the prefill side granted a renewal of the lease, and
all reads of all ranks were seen complete before the moment that renewal was *sent* plus the granted lease. Both
moments are on our own clock, so no clocks are compared::

    claim ---> claimed: reads posted + renewal 1 sent at s1        renewal 2 sent at s2
               |------------- granted lease ------------|
                                       |------------- granted lease ------------|
                     reads complete at c:  deliver if some granted s + lease > c

Rules beside it:

- Reads start in the same call as the first renewal; renewals repeat at a fraction of the lease while reads last.
- One report per fetch, ``Delivered`` or ``Failed``. ``Reusable`` follows a failure once no read of any rank is left.
- Every rank of ours acknowledges once: after a delivery all of them, after a failure each when its reads are terminal.
- A claim that was given up may still be granted; the answer then finds no fetch and is acknowledged at once, so that
  the blocks over there are free without waiting for the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvweave.core.replicas import salt_number
from kvweave.errors import LocalProtocolError, Mismatch
from kvweave.protocol.effects import (
    AnyFailure,
    CancelReads,
    DecodeEffect,
    Delivered,
    Failed,
    FailureReason,
    ForgetPeer,
    PostReads,
    Reusable,
    Send,
    WantPeer,
)
from kvweave.protocol.fetch_entry import FetchEntry, Order
from kvweave.protocol.messages import (
    MOST_BEATS,
    Acknowledge,
    Claim,
    Claimed,
    Heartbeat,
    HeartbeatReply,
    OfferKey,
    RefusalReason,
    Refused,
    Renew,
    Renewed,
    Revoked,
)
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.renewal import LEAST_INTERVAL_SECONDS, Renewals
from kvweave.protocol.states import FetchEvent, FetchState
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

Effects = tuple[DecodeEffect, ...]


class FetchBook:
    """All fetches of one decode engine of ``num_ranks`` ranks. The caller numbers fetches and never reuses a number."""

    def __init__(self, engine_id: str, num_ranks: int, timing: Timing) -> None:
        self._num_ranks = num_ranks
        self._timing = timing
        self._first_salt = salt_number(engine_id) % 2**32
        self._salts: dict[str, int] = {}
        self._fetches: dict[int, FetchEntry] = {}
        self._by_offer: dict[tuple[str, OfferKey], int] = {}
        self._leases: dict[str, float] = {}
        self._timers: Timers[int] = Timers()
        self._beats: Timers[str] = Timers()
        self._owed: dict[str, list[Send]] = {}
        self._begun: set[int] = set()
        self._reading: set[int] = set()

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def begun(self) -> int:
        """How many fetches are under way, those that are merely held left out."""
        return len(self._begun)

    @property
    def reading(self) -> int:
        """How many fetches have reads that may not be terminal."""
        return len(self._reading)

    def next_salt(self, address: str) -> int:
        """A rotation per peer, one step a granted claim; engines begin at different replicas."""
        return self._salts.get(address, self._first_salt)

    def state(self, number: int) -> FetchState | None:
        """Where a fetch stands; None when there is no record of it (never begun, or over)."""
        fetch = self._fetches.get(number)
        return None if fetch is None else fetch.state

    def hold(self, now: float, number: int, address: str, reference: OfferReference) -> Effects:
        """Keeps an offer alive by heartbeats until its fetch begins (or ``abort``)."""
        refused = self._admit(number, address, reference)
        if refused:
            return refused
        if address not in self._leases:
            return (WantPeer(address),)
        self._beats.set(address, now)
        return ()

    def fetch(self, now: float, number: int, order: Order) -> Effects:
        """Begins a fetch, held before or not."""
        if number not in self._fetches:
            refused = self._admit(number, order.address, order.reference)
            if refused:
                return refused
        fetch = self._fetches[number]
        fetch.step(FetchEvent.START)
        fetch.order = order
        self._begun.add(number)
        if fetch.address in self._leases:
            return self._claim(now, fetch)
        return (WantPeer(fetch.address),)

    def abort(self, number: int) -> Effects:
        """Ends a fetch from our side; an unknown or finished one is ignored.

        An offer that was not claimed yet is claimed and acknowledged unread, so that the other side is free at once: as
        soon as the peer is ready, where it is not.
        """
        fetch = self._fetches.get(number)
        if fetch is None:
            return ()
        declined: Effects = ()
        if fetch.state is FetchState.QUEUED and fetch.address in self._leases:
            declined = (self._claim_message(fetch),)
        elif fetch.state in (FetchState.QUEUED, FetchState.AWAITING_PEER):
            self._owed.setdefault(fetch.address, []).append(self._claim_message(fetch))
        return declined + self._give_up(fetch, FailureReason.ABORTED, "aborted by this engine")

    def close(self) -> Effects:
        """Gives everything up, because the engine ends."""
        fetches = list(self._fetches.values())
        return _joined(self._give_up(fetch, FailureReason.CLOSED, "this engine is closing") for fetch in fetches)

    def peer_ready(self, now: float, address: str, lease_seconds: float) -> Effects:
        """Claims what was waiting for this peer, and begins heartbeats."""
        self._leases[address] = lease_seconds
        self._beats.set(address, now)
        waiting = [fetch for fetch in self._at(address) if fetch.state is FetchState.AWAITING_PEER]
        return (*self._owed.pop(address, ()), *_joined(self._claim(now, fetch) for fetch in waiting))

    def peer_lost(self, address: str, text: str) -> Effects:
        """A peer that was ready is gone: what was being read fails, what was not yet claimed tries once more."""
        self._leases.pop(address, None)
        self._salts.pop(address, None)
        self._beats.cancel(address)
        return _joined(self._lose(fetch, text) for fetch in self._at(address))

    def peer_failed(self, address: str, text: str, problems: Sequence[Mismatch]) -> Effects:
        """No connection to the peer came about: everything that waits for it fails."""
        self._owed.pop(address, None)
        reason = FailureReason.INCOMPATIBLE if problems else FailureReason.PEER_LOST
        waiting = [fetch for fetch in self._at(address) if fetch.state in (FetchState.QUEUED, FetchState.AWAITING_PEER)]
        return _joined(self._give_up(fetch, reason, text, tuple(problems)) for fetch in waiting)

    def receive(self, now: float, address: str, message: object) -> Effects:
        """What one message of a peer causes; late and repeated ones change nothing."""
        match message:
            case Claimed():
                return self._claimed(now, address, message)
            case Renewed():
                return self._renewed(address, message)
            case Refused():
                return self._refused(address, message)
            case Revoked():
                fetch = self._fetch_of(address, message.claim)
                return () if fetch is None else self._give_up(fetch, FailureReason.REVOKED, message.text)
            case HeartbeatReply():
                return self._beaten(address, message)
            case _:
                return ()

    def reads_ended(self, number: int, rank: int, completed_at: float) -> Effects:
        """All reads of one rank are terminal; ``completed_at`` is when that was seen, on our clock."""
        fetch = self._fetches.get(number)
        if fetch is None or rank not in fetch.reading:
            return ()
        fetch.reading.discard(rank)
        fetch.completed_at = max(fetch.completed_at, completed_at)
        acknowledged = self._acknowledge(fetch, [rank]) if fetch.state is FetchState.DRAINING else ()
        if fetch.reading:
            return acknowledged
        self._reading.discard(number)
        fetch.step(FetchEvent.READS_END)
        if fetch.state is FetchState.FAILED:
            return acknowledged + self._end(fetch) + (Reusable(number),)
        return self._settle(fetch)

    def read_failed(self, number: int, reason: AnyFailure, text: str) -> Effects:
        """A read of some rank has failed; others may still be under way, ``reads_ended`` follows for each rank."""
        fetch = self._fetches.get(number)
        if fetch is None or fetch.state is not FetchState.READING:
            return ()
        effects = self._give_up(fetch, reason, text)
        return (*effects, ForgetPeer(fetch.address, text)) if reason is FailureReason.PEER_LOST else effects

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        moments = [moment for moment in (self._timers.next(), self._beats.next()) if moment is not None]
        return min(moments, default=None)

    def handle_timer(self, now: float) -> Effects:
        """Sends the renewals and heartbeats that are due, and gives up what was not answered in time."""
        effects = _joined(self._wake(now, self._fetches[number]) for number in self._timers.due(now))
        return effects + _joined(self._beat(now, address) for address in self._beats.due(now))

    def _admit(self, number: int, address: str, reference: OfferReference) -> Effects:
        """A record for a new fetch; refuses one whose offer is being fetched already."""
        if number in self._fetches:
            raise LocalProtocolError(f"fetch {number}: it exists; count fetches up")
        other = self._by_offer.setdefault((address, reference.offer), number)
        if other != number:
            text = f"request {reference.request_id}: fetch {other} of this engine has it; wait for that one"
            return (Failed(number, FailureReason.DUPLICATE, text), Reusable(number))
        self._fetches[number] = FetchEntry(number, address, reference)
        return ()

    def _claim(self, now: float, fetch: FetchEntry) -> Effects:
        fetch.step(FetchEvent.PEER_READY)
        self._timers.set(fetch.number, now + self._timing.answer_seconds)
        return (self._claim_message(fetch),)

    def _claim_message(self, fetch: FetchEntry) -> Send:
        return Send(fetch.address, Claim(fetch.number, fetch.reference.engine_id, fetch.reference.offer))

    def _claimed(self, now: float, address: str, message: Claimed) -> Effects:
        if message.claim not in self._fetches:
            return tuple(Send(address, Acknowledge(message.offer, rank)) for rank in range(self._num_ranks))
        fetch = self._fetch_of(address, message.claim)
        if fetch is None or fetch.state is not FetchState.CLAIMING or fetch.order is None:
            return ()
        difference = fetch.reference.difference(message)
        if difference is not None:
            acknowledged = self._acknowledge(fetch, range(self._num_ranks))
            return acknowledged + self._give_up(fetch, FailureReason.WRONG_REFERENCE, difference)
        fetch.step(FetchEvent.CLAIMED)
        fetch.reading = set(range(self._num_ranks))
        self._reading.add(fetch.number)
        fetch.renewals = Renewals(now, message.lease_seconds * self._timing.renew_fraction)
        self._set_timer(fetch, fetch.renewals)
        post = PostReads(
            fetch.number, address, message.tables, fetch.order.tables, fetch.order.start_token, message.num_tokens,
            self._salt(address), fetch.order.fenced,
        )  # fmt: skip
        return (post, self._renew_message(fetch, fetch.renewals.sequence))

    def _renew_message(self, fetch: FetchEntry, sequence: int) -> Send:
        return Send(fetch.address, Renew(fetch.number, sequence, fetch.reference.engine_id, fetch.reference.offer))

    def _renewed(self, address: str, message: Renewed) -> Effects:
        fetch = self._fetch_of(address, message.claim)
        if fetch is None or fetch.renewals is None:
            return ()
        fetch.step(FetchEvent.RENEWED)
        fetch.renewals.grant(message.sequence, message.lease_seconds)
        return self._settle(fetch)

    def _refused(self, address: str, message: Refused) -> Effects:
        fetch = self._fetch_of(address, message.claim)
        if fetch is None:
            return ()
        changed = message.reason is RefusalReason.NOT_HANDSHAKEN
        if changed and fetch.state is FetchState.CLAIMING and not fetch.moved:
            return (ForgetPeer(address, message.text),)
        effects = self._give_up(fetch, message.reason, message.text)
        return (*effects, ForgetPeer(address, message.text)) if changed else effects

    def _settle(self, fetch: FetchEntry) -> Effects:
        """Delivers when all reads have ended and a grant covers them; otherwise waits on."""
        if fetch.renewals is None or fetch.state not in (FetchState.READING, FetchState.AWAITING_GRANT):
            return ()
        if fetch.state is FetchState.AWAITING_GRANT and fetch.renewals.cover(fetch.completed_at):
            fetch.step(FetchEvent.COVERED)
            acknowledged = self._acknowledge(fetch, range(self._num_ranks))
            return acknowledged + self._end(fetch) + (Delivered(fetch.number),)
        self._set_timer(fetch, fetch.renewals)
        return ()

    def _set_timer(self, fetch: FetchEntry, renewals: Renewals) -> None:
        self._timers.set(fetch.number, min(renewals.due, self._last_moment(renewals)))

    def _last_moment(self, renewals: Renewals) -> float:
        bound = renewals.began_at + self._timing.read_seconds
        return min(bound, renewals.hopeless(self._timing.answer_seconds))

    def _wake(self, now: float, fetch: FetchEntry) -> Effects:
        renewals = fetch.renewals
        if renewals is None:
            seconds = self._timing.answer_seconds
            return self._give_up(
                fetch, FailureReason.UNANSWERED, f"{fetch.address} did not answer within {seconds:g} s"
            )
        if now >= self._last_moment(renewals):
            return self._give_up(fetch, *_too_late(fetch, renewals))
        sequence = renewals.send(now)
        self._set_timer(fetch, renewals)
        return (self._renew_message(fetch, sequence),)

    def _give_up(
        self, fetch: FetchEntry, reason: AnyFailure, text: str, problems: tuple[Mismatch, ...] = ()
    ) -> Effects:
        """The one place where a fetch fails: reports it once, and frees what can be freed already."""
        was = fetch.state
        fetch.step(FetchEvent.GIVE_UP)
        if was is FetchState.DRAINING:
            return ()
        failed = Failed(fetch.number, reason, text, problems)
        self._timers.cancel(fetch.number)
        if fetch.state is FetchState.DRAINING:
            over = [rank for rank in range(self._num_ranks) if rank not in fetch.reading]
            return (failed, CancelReads(fetch.number), *self._acknowledge(fetch, over))
        claimed = range(self._num_ranks) if was is FetchState.AWAITING_GRANT else ()
        return (failed, *self._acknowledge(fetch, claimed), *self._end(fetch), Reusable(fetch.number))

    def _lose(self, fetch: FetchEntry, text: str) -> Effects:
        if fetch.state is FetchState.CLAIMING and not fetch.moved:
            fetch.step(FetchEvent.PEER_CHANGED)
            fetch.moved = True
            self._timers.cancel(fetch.number)
        if fetch.state in (FetchState.QUEUED, FetchState.AWAITING_PEER):
            return (WantPeer(fetch.address),)
        fetch.reachable = False
        return self._give_up(fetch, FailureReason.PEER_LOST, text)

    def _end(self, fetch: FetchEntry) -> Effects:
        """Drops the record, and everything with it."""
        del self._fetches[fetch.number]
        self._begun.discard(fetch.number)
        del self._by_offer[fetch.address, fetch.reference.offer]
        self._timers.cancel(fetch.number)
        return ()

    def _acknowledge(self, fetch: FetchEntry, ranks: Sequence[int]) -> Effects:
        if not fetch.reachable:
            return ()
        return tuple(Send(fetch.address, Acknowledge(fetch.reference.offer, rank)) for rank in ranks)

    def _salt(self, address: str) -> int:
        salt = self.next_salt(address)
        self._salts[address] = salt + 1
        return salt

    def _beat(self, now: float, address: str) -> Effects:
        keys = [fetch.reference.offer for fetch in self._at(address) if fetch.state is FetchState.QUEUED]
        if not keys or address not in self._leases:
            return ()
        interval = max(self._leases[address] * self._timing.renew_fraction, LEAST_INTERVAL_SECONDS)
        self._beats.set(address, now + interval)
        parts = [tuple(keys[start : start + MOST_BEATS]) for start in range(0, len(keys), MOST_BEATS)]
        return tuple(Send(address, Heartbeat(part)) for part in parts)

    def _beaten(self, address: str, message: HeartbeatReply) -> Effects:
        effects: Effects = ()
        for key, reason in message.missing:
            fetch = self._fetches.get(self._by_offer.get((address, key), -1))
            if fetch is not None and fetch.state is FetchState.QUEUED:
                effects += self._give_up(fetch, reason, f"the offer ended while the request was queued: {reason.value}")
            if reason is RefusalReason.NOT_HANDSHAKEN:
                return (*effects, ForgetPeer(address, "the peer does not know this connection"))
        return effects

    def _at(self, address: str) -> list[FetchEntry]:
        return [fetch for fetch in self._fetches.values() if fetch.address == address]

    def _fetch_of(self, address: str, number: int) -> FetchEntry | None:
        fetch = self._fetches.get(number)
        return fetch if fetch is not None and fetch.address == address else None


def _joined(parts: Iterable[Effects]) -> Effects:
    return tuple(effect for part in parts for effect in part)


def _too_late(fetch: FetchEntry, renewals: Renewals) -> tuple[FailureReason, str]:
    if renewals.granted_until is None:
        return FailureReason.UNANSWERED, f"{fetch.address} granted no renewal"
    return FailureReason.LATE, "the reads were not complete within read_seconds, or before the granted lease ended"
