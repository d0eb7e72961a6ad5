"""The decode side's progressive transfers: read while they are prefilled, delivered when the final offer was read.

Each part is an ordinary fetch with claim, lease and acknowledgement, from the token on where the one before ended::

    heard     Offered 1 (256)     Offered 2 (512)     Offered 3 (700, final; 1 and 2 hold)
    read            |--- 0..256 ---|     |-- 256..512 --|  |- 512..700, windows, states -| delivered

Rules:

- What was read of a part is provisional: nothing is reported before the final offer was delivered. A part counts only
  if the final offer says that its generation still holds; from the first one on that does not, all is read again.
- One fetch at a time, of the newest offer, which covers all earlier ones. So no two of them write into one block, and
  a part that cannot be read is made up for by the next one.
- The final offer is held while a part is still being read, or there is no room for it yet, and fetched then.
- One report each, ``Delivered`` or ``Failed``; ``Reusable`` follows a failure once no fetch of it is left.
- Whoever gives up before the final offer was heard says so (``Leave``), so that it is not kept for a whole lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvweave.errors import LocalProtocolError, Mismatch
from kvweave.protocol.effects import (
    AbortPart,
    AnyFailure,
    DecodeEffect,
    Delivered,
    Failed,
    FailureReason,
    ForgetPeer,
    HoldPart,
    Reusable,
    Send,
    WantPeer,
)
from kvweave.protocol.follow_entry import FollowEntry, Pursuit, Target, reference_of
from kvweave.protocol.messages import Ended, Offered, RefusalReason
from kvweave.protocol.states import FollowEvent, FollowState
from kvweave.protocol.timers import Timers
from kvweave.protocol.timing import Timing

MOST_RESEND_SECONDS = 8.0
"""How long at most between two questions for a transfer; each stands for a lost answer too."""

Effects = tuple[DecodeEffect, ...]

_UNFINISHED = (FollowState.AWAITING_PEER, FollowState.FOLLOWING, FollowState.COMPLETING)


@dataclass(slots=True)
class _Leaving:
    entry: FollowEntry
    until: float
    resend_seconds: float


class FollowBook:
    """All followed transfers of one decode engine. ``numbers`` are those of its parts' fetches, nobody else's."""

    def __init__(self, timing: Timing, numbers: Iterator[int]) -> None:
        self._timing = timing
        self._numbers = numbers
        self._entries: dict[int, FollowEntry] = {}
        self._owners: dict[int, FollowEntry] = {}
        self._leaving: dict[int, _Leaving] = {}
        self._engine_ids: dict[str, str] = {}
        self._timers: Timers[int] = Timers()
        self._leave_timers: Timers[int] = Timers()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def over(self) -> bool:
        """Whether nothing is left, also nothing to say."""
        return not self._entries and not self._leaving

    def state(self, number: int) -> FollowState | None:
        """Where a followed transfer stands; None when there is no record of it."""
        entry = self._entries.get(number)
        return None if entry is None else entry.state

    def owner(self, number: int) -> int | None:
        """The followed transfer of which this fetch is a part."""
        entry = self._owners.get(number)
        return None if entry is None else entry.number

    def follow(self, now: float, number: int, pursuit: Pursuit) -> Effects:
        """Begins to follow."""
        if number in self._entries:
            raise LocalProtocolError(f"follow {number}: it exists; count fetches up")
        entry = self._entries[number] = FollowEntry(number, pursuit)
        self._be_patient(now, entry)
        if pursuit.address not in self._engine_ids:
            self._timers.set(number, entry.patient_until)
            return (WantPeer(pursuit.address),)
        entry.step(FollowEvent.PEER_READY)
        return self._ask(now, entry)

    def begin(self, number: int, target: Target) -> Effects:
        """What is offered is read into ``target`` from now on; of one that has ended nothing is."""
        entry = self._entries.get(number)
        if entry is None or entry.state is FollowState.DRAINING:
            return ()
        if entry.target is not None:
            raise LocalProtocolError(f"follow {number}: it was begun before; make a new one")
        entry.target = target
        return self._advance(entry)

    def abort(self, now: float, number: int) -> Effects:
        """Ends one from our side; an unknown or finished one is ignored."""
        entry = self._entries.get(number)
        return () if entry is None else self._give_up(now, entry, FailureReason.ABORTED, "aborted by this engine")

    def close(self, now: float) -> Effects:
        """Gives everything up, because the engine ends."""
        text = "this engine is closing"
        return _joined(self._give_up(now, e, FailureReason.CLOSED, text) for e in list(self._entries.values()))

    def peer_ready(self, now: float, address: str, engine_id: str) -> Effects:
        """Asks for what was waiting for this peer."""
        self._engine_ids[address] = engine_id
        waiting = [entry for entry in self._at(address) if entry.state is FollowState.AWAITING_PEER]
        for entry in waiting:
            entry.step(FollowEvent.PEER_READY)
        left = [leaving for leaving in self._leaving.values() if leaving.entry.pursuit.address == address]
        return _joined(self._ask(now, entry) for entry in waiting) + _joined(self._leave(now, one) for one in left)

    def peer_lost(self, now: float, address: str, text: str) -> Effects:
        """A peer that was ready is gone: what has brought nothing yet tries once more."""
        self._engine_ids.pop(address, None)
        self._forget_leaving(address)
        return _joined(self._lose(now, entry, text) for entry in self._at(address))

    def peer_failed(self, now: float, address: str, text: str, problems: Sequence[Mismatch]) -> Effects:
        """No connection to the peer came about."""
        reason = FailureReason.INCOMPATIBLE if problems else FailureReason.PEER_LOST
        waiting = [entry for entry in self._at(address) if entry.state is FollowState.AWAITING_PEER]
        effects = _joined(self._give_up(now, entry, reason, text, tuple(problems)) for entry in waiting)
        self._forget_leaving(address)
        return effects

    def receive(self, now: float, address: str, message: Offered | Ended) -> Effects:
        """What one message of a peer causes; late and repeated ones change nothing."""
        leaving = self._leaving.get(message.follow)
        if isinstance(message, Ended) and leaving is not None and leaving.entry.pursuit.address == address:
            del self._leaving[message.follow]
            self._leave_timers.cancel(message.follow)
            return ()
        entry = self._entries.get(message.follow)
        if entry is None or entry.pursuit.address != address or entry.state is not FollowState.FOLLOWING:
            return ()
        if isinstance(message, Offered):
            return self._hear(now, entry, message) if message.sequence > entry.seen else ()
        if message.reason is not RefusalReason.NOT_HANDSHAKEN:
            return self._give_up(now, entry, message.reason, message.text)
        return (ForgetPeer(address, message.text),)

    def part_ended(self, now: float, effect: Delivered | Failed | Reusable) -> Effects:
        """What becomes of a transfer when one of its fetches was delivered, has failed or has ended."""
        entry = self._owners[effect.fetch]
        final = effect.fetch == entry.final
        if isinstance(effect, Failed):
            return self._give_up(now, entry, effect.reason, effect.text, effect.problems) if final else ()
        del self._owners[effect.fetch]
        entry.fetches.discard(effect.fetch)
        if effect.fetch == entry.part:
            entry.part = None
        if isinstance(effect, Delivered):
            if final and entry.state is FollowState.FETCHING:
                entry.step(FollowEvent.FETCHED)
                self._drop(entry)
                return (Delivered(entry.number),)
            entry.keep()
        entry.reading = None if entry.part is None else entry.reading
        return self._end(entry) if entry.state is FollowState.DRAINING else self._advance(entry)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        moments = (self._timers.next(), self._leave_timers.next())
        return min((moment for moment in moments if moment is not None), default=None)

    def handle_timer(self, now: float) -> Effects:
        """Asks again, and gives up what was not answered in time."""
        effects = _joined(self._wake(now, self._entries[number]) for number in self._timers.due(now))
        return effects + _joined(self._leave(now, self._leaving[number]) for number in self._leave_timers.due(now))

    def _at(self, address: str) -> list[FollowEntry]:
        return [entry for entry in self._entries.values() if entry.pursuit.address == address]

    def _be_patient(self, now: float, entry: FollowEntry) -> None:
        entry.patient_until = now + self._timing.progress_seconds
        entry.resend_seconds = self._timing.resend_seconds

    def _ask(self, now: float, entry: FollowEntry) -> Effects:
        self._timers.set(entry.number, min(now + entry.resend_seconds, entry.patient_until))
        return (entry.ask(),)

    def _wake(self, now: float, entry: FollowEntry) -> Effects:
        if now >= entry.patient_until:
            text = f"{entry.pursuit.address} offered nothing new within {self._timing.progress_seconds:g} s"
            return self._give_up(now, entry, FailureReason.UNANSWERED, text)
        entry.resend_seconds = min(2 * entry.resend_seconds, MOST_RESEND_SECONDS)
        return self._ask(now, entry)

    def _hear(self, now: float, entry: FollowEntry, offered: Offered) -> Effects:
        """A newer offer: it is fetched now, or when the fetch before it has ended."""
        doubts = entry.doubts(offered)
        if doubts is not None:
            return self._give_up(now, entry, FailureReason.WRONG_REFERENCE, doubts)
        void = entry.hear(offered)
        effects: Effects = (AbortPart(entry.part),) if void and entry.part is not None else ()
        if not offered.final:
            entry.step(FollowEvent.OFFERED)
            self._be_patient(now, entry)
            self._timers.set(entry.number, now + entry.resend_seconds)
            return effects + self._advance(entry)
        entry.step(FollowEvent.FINISHED)
        self._timers.cancel(entry.number)
        entry.final = next(self._numbers)
        if entry.part is not None or entry.target is None:
            address = entry.pursuit.address
            entry.fetches.add(entry.final)
            self._owners[entry.final] = entry
            effects += (HoldPart(entry.final, address, reference_of(address, self._engine_ids[address], offered)),)
        return effects + self._advance(entry)

    def _advance(self, entry: FollowEntry) -> Effects:
        """Fetches the newest offer, if no other fetch writes into the same blocks."""
        offered, engine_id, target = entry.newest, self._engine_ids.get(entry.pursuit.address), entry.target
        if entry.part is not None or offered is None or engine_id is None or target is None:
            return ()
        if not offered.final and offered.num_tokens <= entry.read_tokens:
            return ()
        entry.newest = None
        number = next(self._numbers) if entry.final is None else entry.final
        if offered.final:
            entry.step(FollowEvent.PARTS_END)
        self._owners[number] = entry
        return (entry.fetch(number, offered, engine_id, target),)

    def _lose(self, now: float, entry: FollowEntry, text: str) -> Effects:
        if entry.state is FollowState.FOLLOWING and not entry.seen and not entry.moved:
            entry.moved = True
            entry.step(FollowEvent.PEER_CHANGED)
        if entry.state is FollowState.AWAITING_PEER:
            self._timers.set(entry.number, entry.patient_until)
            return (WantPeer(entry.pursuit.address),)
        return self._give_up(now, entry, FailureReason.PEER_LOST, text) if entry.state in _UNFINISHED else ()

    def _give_up(
        self, now: float, entry: FollowEntry, reason: AnyFailure, text: str, problems: tuple[Mismatch, ...] = ()
    ) -> Effects:
        """The one place where a followed transfer fails: reports it once, and ends its fetches."""
        if entry.state is FollowState.DRAINING:
            return ()
        left: Effects = ()
        if entry.state is FollowState.FOLLOWING and entry.pursuit.address in self._engine_ids:
            left = self._leave(now, _Leaving(entry, now + self._timing.answer_seconds, self._timing.resend_seconds))
        elif entry.state is FollowState.AWAITING_PEER:
            until = now + self._timing.handshake_seconds
            self._leaving[entry.number] = _Leaving(entry, until, self._timing.resend_seconds)
            self._leave_timers.set(entry.number, until)
        entry.step(FollowEvent.GIVE_UP)
        self._timers.cancel(entry.number)
        aborted = tuple(AbortPart(number) for number in sorted(entry.fetches))
        return (Failed(entry.number, reason, text, problems), *left, *aborted, *self._end(entry))

    def _end(self, entry: FollowEntry) -> Effects:
        """The end of one that has failed, once no fetch of it is left."""
        if entry.fetches:
            return ()
        entry.step(FollowEvent.READS_END)
        self._drop(entry)
        return (Reusable(entry.number),)

    def _drop(self, entry: FollowEntry) -> None:
        del self._entries[entry.number]
        self._timers.cancel(entry.number)

    def _leave(self, now: float, leaving: _Leaving) -> tuple[Send, ...]:
        """Says that nothing more is wanted, until that was heard."""
        number = leaving.entry.number
        if now >= leaving.until:
            self._leaving.pop(number, None)
            return ()
        self._leaving[number] = leaving
        self._leave_timers.set(number, now + leaving.resend_seconds)
        leaving.resend_seconds *= 2
        return (leaving.entry.leave(),)

    def _forget_leaving(self, address: str) -> None:
        for number in [n for n, leaving in self._leaving.items() if leaving.entry.pursuit.address == address]:
            del self._leaving[number]
            self._leave_timers.cancel(number)


def _joined(parts: Iterable[Effects]) -> Effects:
    return tuple(effect for part in parts for effect in part)
