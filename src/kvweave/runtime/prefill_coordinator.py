"""What the polling thread of a prefill engine drives: offers, control channel and workers.

It carries out the effects of ``PrefillSide`` and tells it what happened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kvweave.core.layout import RankLayout
from kvweave.errors import IncompatiblePeer, RemoteProtocolError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import Drained, Greeted, PrefillEffect, Release, ReleaseReason, Send, TurnedDown
from kvweave.protocol.messages import (
    ChecksumRequest,
    Checksums,
    EngineRole,
    HandshakeRefused,
    HandshakeRequest,
    OfferKey,
    RefusalReason,
    Refused,
)
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import PrefillSide
from kvweave.runtime.allowance import Allowance
from kvweave.runtime.checksums import checksums, require_registered
from kvweave.runtime.clock import Clock
from kvweave.runtime.commands import CommandQueue
from kvweave.runtime.control import Caller, ControlServer
from kvweave.runtime.drains import Drain, Drains
from kvweave.runtime.events import PrefillLink
from kvweave.runtime.log_lines import LogLines
from kvweave.runtime.metrics import Recorder
from kvweave.runtime.naming import require_own_name
from kvweave.runtime.polling import Activity

GREETED_SECONDS = 5.0
"""How long after a handshake the thread stays awake for the connections that follow, at most: who says something else
then has them."""
HANDSHAKE_BYTES_AT_ONCE = 64 << 20
HANDSHAKE_BYTES_PER_SECOND = 8 << 20
LEAST_HANDSHAKE_BYTES = 128 << 10
"""What answers to the handshakes of one key (or host, without keys) may have, each counted as the last at least: 512 at
once, 64 a second, so that nobody drives the connections of others out of the reception's memory between two heartbeats.
"""


@dataclass(frozen=True, slots=True)
class Released:
    """The blocks of this offer may be freed; comes exactly once per offer."""

    request_id: str
    generation: int
    reason: ReleaseReason


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer the blocks of a reference; the future hears of their release.

    ``transfer_id`` is that of the transfer which it is a part of, or ``final`` in.
    """

    reference: OfferReference
    lease_seconds: float | None
    announcement: Future[Released]
    transfer_id: str | None = None
    final: bool = True


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take an offer back."""

    offer: OfferKey


@dataclass(frozen=True, slots=True)
class BeginTransfer:
    """A prompt will be offered while it is prefilled; ``prompt`` is what followers are told that it is called."""

    transfer_id: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Retract:
    """The blocks of a transfer's offers are given up."""

    transfer_id: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """A transfer ends without a final offer."""

    transfer_id: str


PrefillCommand = Offer | Withdraw | BeginTransfer | Retract | Abandon | Drain


class PrefillCoordinator:
    """Offers, control channel and workers of one engine, driven by one thread. ``submit`` alone is for all threads.

    ``summed`` are the ranks whose checksums are given to those who read them; none unless faults are looked for.
    """

    def __init__(
        self,
        side: PrefillSide,
        server: ControlServer,
        workers: Sequence[PrefillLink],
        clock: Clock,
        recorder: Recorder,
        summed: Sequence[RankLayout] = (),
    ) -> None:
        self._side = side
        self._server = server
        self._workers = workers
        self._clock = clock
        self._recorder = recorder
        self._commands: CommandQueue[PrefillCommand] = CommandQueue()
        self._announcements: dict[OfferKey, Future[Released]] = {}
        self._greeted: dict[Caller, float] = {}
        self._drains = Drains(side.offers.engine_id)
        self._summed = summed
        self._log = LogLines(side.offers.engine_id, recorder)
        self._dropped = 0
        self._handshakes = Allowance(HANDSHAKE_BYTES_AT_ONCE, HANDSHAKE_BYTES_PER_SECOND)

    def submit(self, command: PrefillCommand) -> None:
        """Queues a command, from any thread; it is carried out before any message that comes in later.

        Raises ``LocalProtocolError`` when the engine has ended.
        """
        self._commands.put(command)

    def sockets(self) -> Sequence[Any]:
        """See ``Pollable``."""
        return [*self._server.sockets(), *(socket for worker in self._workers for socket in worker.sockets())]

    def poll(self) -> Activity:
        """See ``Pollable``. Messages are taken before commands and handled after them: an offer precedes its claim."""
        for worker in self._workers:
            worker.poll()
        messages = self._server.receive()
        for command in self._commands.take():
            self._carry_out(command)
        for connection, data in messages:
            self._receive(connection, data)
        now = self._clock()
        self._perform(self._side.handle_timer(now))
        self._look_at_callers(now)
        self._log.tick(now)
        self._greeted = {caller: until for caller, until in self._greeted.items() if now < until}
        busy = self._side.offers.attended > 0 or bool(self._greeted) or self._server.waiting
        for worker in self._workers:
            worker.attend(busy)
        return Activity.SERVING if busy else Activity.IDLE

    def begin_closing(self) -> None:
        """See ``Pollable``."""
        self._perform(self._side.begin_closing(self._clock()))

    def close(self, cause: BaseException | None) -> None:
        """See ``Pollable``. Blocks that may be being read are released when the workers have ended: a reader that was
        not reached must not find another request's bytes there. Offers that came too late are released as well.
        """
        try:
            self._perform(self._side.begin_closing(self._clock()))
            for command in self._commands.close():
                self._carry_out(command)
        finally:
            try:
                for worker in self._workers:
                    worker.close()
            finally:
                self._perform(self._side.close())
                self._drains.end_all(())
                self._server.close()

    def _carry_out(self, command: PrefillCommand) -> None:
        now = self._clock()
        match command:
            case Drain(future):
                self._drains.begin(future)
                self._perform(self._side.drain())
            case Withdraw(offer):
                self._perform(self._side.withdraw(now, offer))
            case BeginTransfer(transfer_id, prompt):
                self._side.begin_transfer(now, transfer_id, prompt)
            case Retract(transfer_id):
                self._perform(self._side.retract_parts(now, transfer_id))
            case Abandon(transfer_id):
                self._perform(self._side.abandon_transfer(now, transfer_id))
            case Offer():
                self._offer(now, command)

    def _offer(self, now: float, command: Offer) -> None:
        reference, lease_seconds = command.reference, command.lease_seconds
        self._recorder.add("offers" if command.final else "offered_parts")
        self._announcements[reference.offer] = command.announcement
        if command.transfer_id is None:
            self._perform(self._side.offer(now, reference, lease_seconds))
        else:
            part = self._side.offer_part(now, command.transfer_id, reference, command.final, lease_seconds)
            self._perform(part)

    def _receive(self, connection: Caller, data: bytes) -> None:
        try:
            message = decode(data, EngineRole.DECODE)
            if isinstance(message, HandshakeRequest):
                effects = self._greet(connection, message)
                if any(isinstance(effect, Greeted) for effect in effects):
                    self._greeted[connection] = self._clock() + GREETED_SECONDS
            elif isinstance(message, ChecksumRequest):
                effects = self._checksum(connection, message)
            else:
                self._greeted.pop(connection, None)
                effects = self._side.receive(self._clock(), connection, message)
        except IncompatiblePeer as error:
            effects = self._side.other_version(connection, str(error))
        except RemoteProtocolError as error:
            self._recorder.add("malformed_messages")
            text = f"{connection.host}: malformed message: {error}"
            self._log.note(self._clock(), logging.WARNING, f"{connection.host}: malformed messages", text)
            return
        self._perform(effects)

    def _greet(self, caller: Caller, request: HandshakeRequest) -> tuple[PrefillEffect, ...]:
        """The answer to a handshake: costly ones have an allowance, and nobody takes another engine's name."""
        now = self._clock()
        try:
            require_own_name(request.engine_id, caller.key)
        except RemoteProtocolError as error:
            return (Send(caller, HandshakeRefused(request.attempt, RefusalReason.WRONG_KEY, str(error))),)
        if not self._handshakes.take(now, caller.identity, max(self._side.handshake_bytes, LEAST_HANDSHAKE_BYTES)):
            text = "too many handshakes from this engine or host; wait some seconds"
            return (Send(caller, HandshakeRefused(request.attempt, RefusalReason.TOO_MANY, text)),)
        return self._side.receive(now, caller, request)

    def _checksum(self, caller: Caller, request: ChecksumRequest) -> tuple[PrefillEffect, ...]:
        """The checksums of pieces that the caller has claimed; raises ``RemoteProtocolError`` for foreign memory."""
        if not self._summed or not self._side.has_claimed(self._clock(), caller, request.offer):
            reason = RefusalReason.NOT_CLAIMED if self._summed else RefusalReason.NO_CHECKSUMS
            text = "not your offer" if self._summed else "this engine computes no checksums; start it with checksums"
            return (Send(caller, Refused(request.claim, reason, text)),)
        if request.rank >= len(self._summed):
            raise RemoteProtocolError(f"checksums: rank {request.rank} of {len(self._summed)}")
        require_registered(self._summed[request.rank], request.addresses, request.sizes)
        self._recorder.add("checked_pieces", amount=len(request.sizes))
        sums = checksums(request.addresses, request.sizes)
        return (Send(caller, Checksums(request.claim, request.asking, sums)),)

    def _look_at_callers(self, now: float) -> None:
        """Counts and names those who were turned away at the door, or sent more than can be handled."""
        turned_away, more = self._server.take_turned_away()
        for caller in turned_away:
            self._recorder.add("turned_away", caller.reason)
            key = f" with key {caller.key}" if caller.key else ""
            text = f"turned away: {caller.host}{key}: {caller.reason}; if it is yours, {caller.remedy}"
            self._log.note(now, logging.WARNING, f"turned away ({caller.reason}) {caller.host} {caller.key}", text)
        if more:
            self._recorder.add("turned_away", "not_named", more)
        if self._server.dropped > self._dropped:
            self._recorder.add("dropped_messages", amount=self._server.dropped - self._dropped)
            self._dropped = self._server.dropped
            self._log.note(now, logging.WARNING, "messages dropped", "a peer sends more than can be handled")

    def _perform(self, effects: Iterable[PrefillEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case Release():
                    self._release(effect)
                case Drained():
                    self._drains.end()
                case Greeted():
                    self._recorder.add("handshakes")
                    line = f"decode engine {effect.engine_id} connected"
                    self._log.note(self._clock(), logging.INFO, "decode engines connected", line)
                case TurnedDown():
                    self._recorder.add("found_incompatible")
                    problems = "; ".join(map(str, effect.problems[:5]))
                    line = f"decode engine {effect.engine_id} finds us incompatible: {problems}"
                    self._log.note(self._clock(), logging.WARNING, "found incompatible", line)

    def _send(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, Refused | HandshakeRefused):
            self._recorder.add("refused", message.reason.value)
            host = effect.to.host if isinstance(effect.to, Caller) else effect.to
            line = f"{host}: refused ({message.reason.value}): {message.text}"
            self._log.note(self._clock(), logging.WARNING, f"refused ({message.reason.value})", line)
        if not self._server.send(effect.to, encode(message)):
            self._recorder.add("unsent_messages")

    def _release(self, effect: Release) -> None:
        self._recorder.add("released", effect.reason.value)
        released = Released(effect.offer.request_id, effect.offer.generation, effect.reason)
        self._announcements.pop(effect.offer).set_result(released)
