"""What the polling thread of a prefill engine drives: offers, control channel and workers.

It carries out the effects of ``PrefillSide`` and tells it what happened.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kvweave.errors import IncompatiblePeer, RemoteProtocolError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import Drained, Greeted, PrefillEffect, Release, ReleaseReason, Send, TurnedDown
from kvweave.protocol.messages import OfferKey
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import PrefillSide
from kvweave.runtime.clock import Clock
from kvweave.runtime.commands import CommandQueue
from kvweave.runtime.control import ControlServer
from kvweave.runtime.drains import Drain, Drains
from kvweave.runtime.events import PrefillLink
from kvweave.runtime.metrics import Recorder
from kvweave.runtime.polling import Activity

GREETED_SECONDS = 5.0
"""How long after a handshake the thread stays awake for the connections that follow."""

logger = logging.getLogger("kvweave")


@dataclass(frozen=True, slots=True)
class Released:
    """The blocks of this offer may be freed; comes exactly once per offer."""

    request_id: str
    generation: int
    reason: ReleaseReason


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer the blocks of a reference; the future hears of their release."""

    reference: OfferReference
    lease_seconds: float | None
    announcement: Future[Released]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take an offer back."""

    offer: OfferKey


PrefillCommand = Offer | Withdraw | Drain


class PrefillCoordinator:
    """Offers, control channel and workers of one engine, driven by one thread. ``submit`` alone is for all threads."""

    def __init__(
        self,
        side: PrefillSide,
        server: ControlServer,
        workers: Sequence[PrefillLink],
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._side = side
        self._server = server
        self._workers = workers
        self._clock = clock
        self._recorder = recorder
        self._commands: CommandQueue[PrefillCommand] = CommandQueue()
        self._announcements: dict[OfferKey, Future[Released]] = {}
        self._awake_until = 0.0
        self._drains = Drains()

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
        busy = self._side.offers.being_read > 0 or now < self._awake_until
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
        if isinstance(command, Drain):
            self._drains.begin(command.future)
            self._perform(self._side.drain())
            return
        if isinstance(command, Withdraw):
            self._perform(self._side.withdraw(now, command.offer))
            return
        self._recorder.add("offers")
        self._announcements[command.reference.offer] = command.announcement
        self._perform(self._side.offer(now, command.reference, command.lease_seconds))

    def _receive(self, connection: Hashable, data: bytes) -> None:
        try:
            effects = self._side.receive(self._clock(), connection, decode(data))
        except IncompatiblePeer as error:
            logger.warning("a peer of another version called: %s", error)
            effects = self._side.other_version(connection, str(error))
        except RemoteProtocolError as error:
            self._recorder.add("malformed_messages")
            logger.debug("malformed message: %s", error)
            return
        self._perform(effects)

    def _perform(self, effects: Iterable[PrefillEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    if not self._server.send(effect.to, encode(effect.message)):
                        self._recorder.add("unsent_messages")
                case Release():
                    self._release(effect)
                case Drained():
                    self._drains.end()
                case Greeted():
                    self._recorder.add("handshakes")
                    self._awake_until = self._clock() + GREETED_SECONDS
                    logger.info("decode engine %s connected", effect.engine_id)
                case TurnedDown():
                    logger.warning(
                        "decode engine %s finds us incompatible:\n%s",
                        effect.engine_id,
                        "\n".join(map(str, effect.problems)),
                    )

    def _release(self, effect: Release) -> None:
        self._recorder.add("released", effect.reason.value)
        released = Released(effect.offer.request_id, effect.offer.generation, effect.reason)
        self._announcements.pop(effect.offer).set_result(released)
