"""What our ranks have to acknowledge and a peer has not confirmed: said again, but not longer than a lease.

After a lease the offer has ended over there whatever was heard, so nothing is owed any more. To a peer that is not
ready yet it is said as soon as it is. A peer that confirms nothing, or grants what nobody asked for, costs a bounded
memory and a bounded time, whatever lease it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvweave.protocol.effects import Send
from kvweave.protocol.messages import Acknowledge, Acknowledged, OfferKey
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

MOST_OWED = 4096
"""Claims of one peer that may wait for their confirmation; the oldest are forgotten, their leases end."""
MOST_OWED_SECONDS = 120.0
"""How long it is said again under a longer lease: a peer that lives has confirmed it, one that is gone is found out."""

_Key = tuple[str, int]


@dataclass(slots=True)
class _Owed:
    offer: OfferKey
    interval: float
    until: float | None = None
    ranks: set[int] = field(default_factory=set)


class Acknowledgements:
    """All of one decode engine, by address and claim."""

    def __init__(self, timing: Timing) -> None:
        self._resend_seconds = timing.resend_seconds
        self._owed: dict[str, dict[int, _Owed]] = {}
        self._timers: Timers[_Key] = Timers()

    def __len__(self) -> int:
        return sum(map(len, self._owed.values()))

    def owe(
        self, now: float, address: str, claim: int, offer: OfferKey, ranks: Iterable[int], lease_seconds: float | None
    ) -> tuple[Send, ...]:
        """Says that these ranks have ended. ``lease_seconds`` is None while the peer is not ready."""
        ended = set(ranks)
        if not ended:
            return ()
        owed = self._owed.setdefault(address, {}).setdefault(claim, _Owed(offer, self._resend_seconds))
        owed.ranks |= ended
        if len(self._owed[address]) > MOST_OWED:
            self._forget((address, next(iter(self._owed[address]))))
        return () if lease_seconds is None else self._begin(now, (address, claim), owed, lease_seconds)

    def confirm(self, address: str, message: Acknowledged) -> None:
        """The peer has heard it."""
        owed = self._owed.get(address, {}).get(message.claim)
        if owed is not None:
            owed.ranks.difference_update(message.ranks)
            if not owed.ranks:
                self._forget((address, message.claim))

    def peer_ready(self, now: float, address: str, lease_seconds: float) -> tuple[Send, ...]:
        """Says what was waiting for this peer."""
        waiting = self._owed.get(address, {}).items()
        return tuple(s for claim, owed in waiting for s in self._begin(now, (address, claim), owed, lease_seconds))

    def peer_gone(self, address: str) -> None:
        """Nothing is owed to a peer that is gone: its blocks are, or their leases end."""
        for claim in list(self._owed.get(address, ())):
            self._forget((address, claim))

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return self._timers.next()

    def handle_timer(self, now: float) -> tuple[Send, ...]:
        """Says again what is due, and forgets what is over."""
        sends: list[Send] = []
        for key in self._timers.due(now):
            address, claim = key
            owed = self._owed[address][claim]
            if owed.until is None or now >= owed.until:
                self._forget(key)
            else:
                owed.interval *= 2
                sends.append(self._say(now, key, owed))
        return tuple(sends)

    def _begin(self, now: float, key: _Key, owed: _Owed, lease_seconds: float) -> tuple[Send, ...]:
        owed.until = now + min(lease_seconds, MOST_OWED_SECONDS)
        owed.interval = self._resend_seconds
        return (self._say(now, key, owed),)

    def _say(self, now: float, key: _Key, owed: _Owed) -> Send:
        address, claim = key
        self._timers.set(key, now + owed.interval)
        return Send(address, Acknowledge(claim, owed.offer, tuple(sorted(owed.ranks))))

    def _forget(self, key: _Key) -> None:
        address, claim = key
        del self._owed[address][claim]
        if not self._owed[address]:
            del self._owed[address]
        self._timers.cancel(key)
