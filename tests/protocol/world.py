"""Two joined sides without I/O: a network that delays, drops, repeats and reorders, and blocks that are reused.

Time is virtual. A read looks at the blocks when it completes: if they were released by then, its bytes are another
request's. What must hold whatever happens is checked at every delivery and at the end.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import (
    CancelReads,
    ConnectPeer,
    Delivered,
    Failed,
    FailureReason,
    PostReads,
    Release,
    ReleaseReason,
    Reusable,
    Send,
)
from kvweave.protocol.fetch_entry import Order
from kvweave.protocol.messages import OfferKey
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.protocol.timing import Timing
from tests.protocol.examples import ADDRESS, ENGINE, TARGETS, TIMING, reference, small_layout

Network = Callable[[], Sequence[float]]
"""Delays in seconds of the copies of one message: none when it is dropped, two when it is repeated."""

CONNECTION = b"connection"


@dataclass
class World:
    """One prefill and one decode engine. ``read_seconds`` is asked once per rank and fetch."""

    network: Network = lambda: (0.001,)
    read_seconds: Callable[[], float] = lambda: 0.01
    lease_seconds: float = 10.0
    decode_ranks: int = 2
    timing: Timing = TIMING
    now: float = 1000.0
    released: dict[OfferKey, float] = field(default_factory=dict)
    reports: dict[int, Delivered | Failed] = field(default_factory=dict)
    reported_at: dict[int, float] = field(default_factory=dict)
    reusable: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source, target = small_layout(4), small_layout(self.decode_ranks, block_size=6)
        self.prefill = PrefillSide(ENGINE, source, [b"agent"] * 4, self.lease_seconds)
        self.decode = DecodeSide("decode-1", target, self.timing)
        self.stopped: dict[str, float] = {"prefill": 0.0, "decode": 0.0}
        self.reading: dict[int, set[int]] = defaultdict(set)
        self.completed: dict[int, list[float]] = defaultdict(list)
        self.offers: dict[int, OfferKey] = {}
        self._events: list[tuple[float, int, str, Callable[[], tuple[object, ...]]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)

    def offer(self, request_id: str = "request", generation: int = 1) -> OfferReference:
        made = reference(request_id, generation)
        self.perform(self.prefill.offer(self.now, made))
        return made

    def fetch(self, wanted: OfferReference) -> int:
        number = next(self._numbers)
        self.offers[number] = wanted.offer
        self.perform(self.decode.fetch(self.now, number, Order(ADDRESS, wanted, TARGETS)))
        return number

    def abort(self, number: int) -> None:
        self.perform(self.decode.abort(self.now, number))

    def stop(self, side: str, seconds: float) -> None:
        """Stops a process: nothing reaches it and no timer of it runs; reads of its memory go on."""
        self.stopped[side] = self.now + seconds

    def at(self, delay: float, side: str, action: Callable[[], tuple[object, ...]]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), side, action))

    def run(self, seconds: float = 1000.0) -> None:
        """Lets everything happen that happens within ``seconds``."""
        end = self.now + seconds
        while (moment := self._next_moment()) is not None and moment <= end:
            self.now = max(self.now, moment)
            while self._events and self._events[0][0] <= self.now:
                self._happen(*heapq.heappop(self._events))
            for side, book in (("prefill", self.prefill), ("decode", self.decode)):
                if self.stopped[side] <= self.now:
                    self.perform(book.handle_timer(self.now))
        self.now = end

    def _happen(self, moment: float, order: int, side: str, action: Callable[[], tuple[object, ...]]) -> None:
        if self.stopped[side] > self.now:
            heapq.heappush(self._events, (self.stopped[side], order, side, action))
        else:
            self.perform(action())

    def _next_moment(self) -> float | None:
        moments = [self._events[0][0]] if self._events else []
        for side, book in (("prefill", self.prefill), ("decode", self.decode)):
            if (timer := book.get_timer()) is not None:
                moments.append(max(timer, self.stopped[side]))
        return min(moments, default=None)

    def perform(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self._carry(to, encode(message))
                case ConnectPeer():
                    self._connect(effect)
                case PostReads():
                    self._post(effect)
                case CancelReads(fetch):
                    self._cancel(fetch)
                case Release():
                    self._release(effect)
                case Delivered(fetch) | Failed(fetch):
                    self._report(fetch, effect)
                case Reusable(fetch):
                    self._reuse(fetch)

    def _connect(self, effect: ConnectPeer) -> None:
        for rank in range(self.decode_ranks):
            self.at(0.001, "decode", partial(self._connected, effect.address, effect.attempt, rank))

    def _connected(self, address: str, attempt: int, rank: int) -> tuple[object, ...]:
        return self.decode.connected(self.now, address, attempt, rank)

    def _cancel(self, fetch: int) -> None:
        for rank in sorted(self.reading[fetch]):
            self.at(0.002, "decode", partial(self._ended, fetch, rank))

    def _release(self, effect: Release) -> None:
        key = effect.offer
        assert key not in self.released, f"{key} is released twice"
        if effect.reason is ReleaseReason.ACKNOWLEDGED:
            busy = [fetch for fetch, offer in self.offers.items() if offer == key and self.reading[fetch]]
            assert not busy, "blocks are acknowledged while a rank still reads them"
        self.released[key] = self.now

    def _reuse(self, fetch: int) -> None:
        assert not self.reading[fetch], "target blocks are reusable while a read is under way"
        assert isinstance(self.reports[fetch], Failed)
        assert fetch not in self.reusable
        self.reusable[fetch] = self.now

    def _carry(self, to: object, data: bytes) -> None:
        for delay in self.network():
            side = "prefill" if to == ADDRESS else "decode"
            self.at(delay, side, partial(self._arrive, side, data))

    def _arrive(self, side: str, data: bytes) -> tuple[object, ...]:
        if side == "prefill":
            return self.prefill.receive(self.now, CONNECTION, decode(data))
        return self.decode.receive(self.now, ADDRESS, decode(data))

    def _post(self, effect: PostReads) -> None:
        assert not self.reading[effect.fetch], "reads are posted twice"
        self.reading[effect.fetch] = set(range(self.decode_ranks))
        for rank in range(self.decode_ranks):
            delay = self.read_seconds()
            self.at(delay, "decode", partial(self._complete, effect.fetch, rank, self.now + delay))

    def _complete(self, fetch: int, rank: int, copied_at: float) -> tuple[object, ...]:
        if rank in self.reading[fetch]:
            self.completed[fetch].append(copied_at)
        return self._ended(fetch, rank)

    def _ended(self, fetch: int, rank: int) -> tuple[object, ...]:
        self.reading[fetch].discard(rank)
        return self.decode.reads_ended(self.now, fetch, rank, self.now)

    def fail_read(self, fetch: int, rank: int) -> None:
        """One rank's reads fail: nothing of it is under way any more."""
        text = "broken"
        self.perform(self.decode.read_failed(self.now, fetch, FailureReason.READ_FAILED, text))
        self.perform(self._ended(fetch, rank))

    def _report(self, fetch: int, report: Delivered | Failed) -> None:
        assert fetch not in self.reports, f"fetch {fetch} is reported twice"
        self.reports[fetch] = report
        self.reported_at[fetch] = self.now
        if isinstance(report, Delivered):
            freed = self.released.get(self.offers[fetch], float("inf"))
            assert len(self.completed[fetch]) == self.decode_ranks
            assert max(self.completed[fetch]) <= freed, "bytes of reused blocks are delivered"

    def check_over(self) -> None:
        """Everything has ended: nothing is pinned, every fetch has one report, failed ones gave their blocks back."""
        assert len(self.prefill.offers) == 0
        assert len(self.decode.fetches) == 0
        assert set(self.reports) == set(self.offers)
        assert set(self.reusable) == {fetch for fetch, report in self.reports.items() if isinstance(report, Failed)}
