"""What our ranks have to acknowledge and a peer has not confirmed: said again, but not longer than a lease.

After a lease the offer has ended over there whatever was heard, so nothing is owed any more. To a peer that is not
ready yet it is said as soon as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvweave.protocol.effects import Send
from kvweave.protocol.messages import Acknowledge, Acknowledged, OfferKey
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

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
        self._owed: dict[_Key, _Owed] = {}
        self._timers: Timers[_Key] = Timers()

    def __len__(self) -> int:
        return len(self._owed)

    def owe(
        self, now: float, address: str, claim: int, offer: OfferKey, ranks: Iterable[int], lease_seconds: float | None
    ) -> tuple[Send, ...]:
        """Says that these ranks have ended. ``lease_seconds`` is None while the peer is not ready."""
        key = address, claim
        owed = self._owed.setdefault(key, _Owed(offer, self._resend_seconds))
        owed.ranks.update(ranks)
        if not owed.ranks:
            del self._owed[key]
            return ()
        return () if lease_seconds is None else self._begin(now, key, owed, lease_seconds)

    def confirm(self, address: str, message: Acknowledged) -> None:
        """The peer has heard it."""
        key = address, message.claim
        owed = self._owed.get(key)
        if owed is not None:
            owed.ranks.difference_update(message.ranks)
            if not owed.ranks:
                self._forget(key)

    def peer_ready(self, now: float, address: str, lease_seconds: float) -> tuple[Send, ...]:
        """Says what was waiting for this peer."""
        keys = [key for key in self._owed if key[0] == address]
        return tuple(send for key in keys for send in self._begin(now, key, self._owed[key], lease_seconds))

    def peer_gone(self, address: str) -> None:
        """Nothing is owed to a peer that is gone: its blocks are, or their leases end."""
        for key in [key for key in self._owed if key[0] == address]:
            self._forget(key)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return self._timers.next()

    def handle_timer(self, now: float) -> tuple[Send, ...]:
        """Says again what is due, and forgets what is over."""
        sends: list[Send] = []
        for key in self._timers.due(now):
            owed = self._owed[key]
            if owed.until is None or now >= owed.until:
                self._forget(key)
            else:
                owed.interval *= 2
                sends.append(self._say(now, key, owed))
        return tuple(sends)

    def _begin(self, now: float, key: _Key, owed: _Owed, lease_seconds: float) -> tuple[Send, ...]:
        owed.until = now + lease_seconds
        owed.interval = self._resend_seconds
        return (self._say(now, key, owed),)

    def _say(self, now: float, key: _Key, owed: _Owed) -> Send:
        address, claim = key
        self._timers.set(key, now + owed.interval)
        return Send(address, Acknowledge(claim, owed.offer, tuple(sorted(owed.ranks))))

    def _forget(self, key: _Key) -> None:
        self._owed.pop(key)
        self._timers.cancel(key)
