"""The ready peers of a decode engine: when each hears from us next, and whether it still answers.

One heartbeat a peer carries the offers of all queued requests; where there are none it asks for a sign of life. So a
peer that is gone is found out within a heartbeat's interval and ``silence_seconds``, also when nothing else is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvweave.protocol.effects import Send
from kvweave.protocol.messages import MOST_BEATS, Heartbeat, OfferKey
from kvweave.protocol.renewal import interval_seconds
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

MOST_SILENT_SECONDS = 0.1
"""A request that is queued for less needs no heartbeat."""


@dataclass(slots=True)
class _Contact:
    lease_seconds: float
    salt: int
    unattended: set[int] = field(default_factory=set)


class Contacts:
    """All ready peers, by address. ``first_salt`` is where the rotation over a peer's replicas begins."""

    def __init__(self, timing: Timing, first_salt: int) -> None:
        self._timing = timing
        self._first_salt = first_salt
        self._contacts: dict[str, _Contact] = {}
        self._beats: Timers[str] = Timers()
        self._silences: Timers[str] = Timers()

    def __len__(self) -> int:
        return len(self._contacts)

    def __contains__(self, address: str) -> bool:
        return address in self._contacts

    def ready(self, now: float, address: str, lease_seconds: float) -> None:
        """A peer is ready from now on."""
        self._contacts[address] = _Contact(lease_seconds, self._first_salt)
        self._beats.set(address, now)

    def lose(self, address: str) -> None:
        """Forgets a peer."""
        self._contacts.pop(address, None)
        self._beats.cancel(address)
        self._silences.cancel(address)

    def lease(self, address: str) -> float | None:
        """The lease of a ready peer; None when it is not ready."""
        contact = self._contacts.get(address)
        return None if contact is None else contact.lease_seconds

    def salt(self, address: str) -> int:
        """A rotation per peer, one step a claim; engines begin at different replicas."""
        contact = self._contacts.get(address)
        return self._first_salt if contact is None else contact.salt

    def take_salt(self, address: str) -> int:
        """The same, and the rotation moves on."""
        salt = self.salt(address)
        self._contacts[address].salt = salt + 1
        return salt

    def note_reads(self, address: str, rank: int, attended: bool) -> None:
        """The last reads of this rank of ours needed the peer's help, or would have been better with it, or not."""
        contact = self._contacts.get(address)
        if contact is not None:
            (contact.unattended.discard if attended else contact.unattended.add)(rank)

    def attends(self, address: str, num_ranks: int) -> bool:
        """Whether the peer should look after the next reads: unless none of our ranks has need of it."""
        contact = self._contacts.get(address)
        return contact is None or len(contact.unattended) < num_ranks

    def hear(self, address: str) -> None:
        """The peer has said something."""
        self._silences.cancel(address)

    def hold(self, address: str, now: float) -> None:
        """An offer is held from now on; if that lasts, the next heartbeat names it."""
        lease = self.lease(address)
        if lease is not None:
            self.beat_by(address, now + min(MOST_SILENT_SECONDS, interval_seconds(lease, self._timing)))

    def beat_by(self, address: str, moment: float) -> None:
        """The next heartbeat comes at ``moment`` or earlier."""
        due = self._beats.get(address)
        if address in self._contacts and (due is None or moment < due):
            self._beats.set(address, moment)

    def note(self, now: float, address: str, lease_seconds: float | None) -> None:
        """The shortest lease of the offers that a heartbeat named; the next one comes in time for it."""
        if lease_seconds is not None:
            self.beat_by(address, now + interval_seconds(lease_seconds, self._timing))

    def beat(self, now: float, address: str, offers: Sequence[OfferKey] = ()) -> tuple[Send, ...]:
        """A heartbeat with these offers, in several messages only where they do not fit one.

        An answer is awaited from the first one on that has none.
        """
        self._beats.set(address, now + interval_seconds(self._contacts[address].lease_seconds, self._timing))
        if self._silences.get(address) is None:
            self._silences.set(address, now + self._timing.silence_seconds)
        starts = range(0, max(len(offers), 1), MOST_BEATS)
        return tuple(Send(address, Heartbeat(tuple(offers[start : start + MOST_BEATS]))) for start in starts)

    def due(self, now: float) -> list[str]:
        """Who should hear from us now."""
        return self._beats.due(now)

    def silent(self, now: float) -> list[str]:
        """Who has not answered for too long."""
        return self._silences.due(now)

    def get_timer(self) -> float | None:
        """When one of the two will be."""
        moments = [moment for moment in (self._beats.next(), self._silences.next()) if moment is not None]
        return min(moments, default=None)
