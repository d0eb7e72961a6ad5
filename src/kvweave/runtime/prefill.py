"""The prefill side at run time: an engine that offers blocks and hears when they are free again.

``PrefillCoordinator`` is everything that the polling thread drives; ``PrefillEngine`` is what an engine's author calls,
from any thread. An offer never waits: its generation number is taken here, and the rest is queued.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from kvweave.core.block_table import BlockTables
from kvweave.core.layout import EngineLayout
from kvweave.errors import IncompatiblePeer, LocalProtocolError, RemoteProtocolError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import Greeted, PrefillEffect, Release, ReleaseReason, Send, TurnedDown
from kvweave.protocol.messages import MOST_ID_LETTERS, MOST_TOKENS, OfferKey
from kvweave.protocol.offer import checked_lease
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import PrefillSide
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.clock import Clock, boot_time
from kvweave.runtime.control import ControlServer
from kvweave.runtime.metrics import Metrics, Observer, Recorder
from kvweave.runtime.naming import TransportFactory, engine_name, rank_names
from kvweave.runtime.polling import Activity, PollingThread
from kvweave.runtime.tables import checked_tables
from kvweave.runtime.workers import PrefillWorker

GREETED_SECONDS = 20.0
"""How long after a handshake the thread stays awake for the connections that follow."""

logger = logging.getLogger("kvweave")


@dataclass(frozen=True, slots=True)
class Released:
    """The blocks of this offer may be freed; comes exactly once per offer."""

    request_id: str
    generation: int
    reason: ReleaseReason


OnRelease = Callable[[Released], None]


@dataclass(frozen=True, slots=True)
class _Offer:
    reference: OfferReference
    lease_seconds: float | None
    announcement: Future[Released]


@dataclass(frozen=True, slots=True)
class _Withdraw:
    offer: OfferKey


class PrefillCoordinator:
    """Offers, control channel and workers of one engine, driven by one thread. ``submit`` alone is for all threads."""

    def __init__(
        self,
        side: PrefillSide,
        server: ControlServer,
        workers: Sequence[PrefillWorker],
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._side = side
        self._server = server
        self._workers = workers
        self._clock = clock
        self._recorder = recorder
        self._commands: deque[_Offer | _Withdraw] = deque()
        self._announcements: dict[OfferKey, Future[Released]] = {}
        self._awake_until = 0.0

    def submit(self, command: _Offer | _Withdraw) -> None:
        """Queues a command; it is carried out before any message that comes in later."""
        self._commands.append(command)

    def sockets(self) -> Sequence[Any]:
        """See ``Pollable``."""
        return self._server.sockets()

    def poll(self) -> Activity:
        """See ``Pollable``. Messages are taken before commands and handled after them: an offer precedes its claim."""
        for worker in self._workers:
            worker.poll()
        messages = self._server.receive()
        while self._commands:
            self._carry_out(self._commands.popleft())
        for connection, data in messages:
            self._receive(connection, data)
        now = self._clock()
        self._perform(self._side.handle_timer(now))
        busy = self._side.offers.being_read or now < self._awake_until
        return Activity.SERVING if busy else Activity.IDLE

    def begin_closing(self) -> None:
        """See ``Pollable``."""
        self._perform(self._side.close())

    def close(self, cause: BaseException | None) -> None:
        """See ``Pollable``. Offers that came too late are released as well."""
        try:
            while self._commands:
                self._carry_out(self._commands.popleft())
            self._perform(self._side.close())
        finally:
            self._server.close()
            for worker in self._workers:
                worker.close()

    def _carry_out(self, command: _Offer | _Withdraw) -> None:
        now = self._clock()
        if isinstance(command, _Withdraw):
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


class PrefillEngine:
    """An engine whose finished prompts can be fetched.

    ``layout`` has the real addresses of every rank's memory, which is registered here. ``transport`` makes one
    transport per rank from a unique name. ``bind`` is where decode engines reach the control channel (``host:port``,
    port 0 takes a free one); on several machines name their hosts or networks in ``peers``. ``advertise`` is the host
    that references name, when it is not the bound one. ``engine_id`` must be new with every restart, and is made up
    when not given.
    """

    def __init__(
        self,
        layout: EngineLayout,
        *,
        transport: TransportFactory,
        engine_id: str | None = None,
        bind: str = "127.0.0.1:0",
        advertise: str | None = None,
        peers: Sequence[str] = (),
        lease_seconds: float = 30.0,
        clock: Clock = boot_time,
        observer: Observer | None = None,
    ) -> None:
        checked_lease(lease_seconds)
        self.layout = layout
        self.engine_id = engine_id or engine_name("prefill")
        self._recorder = Recorder(observer)
        self._generations = itertools.count(secrets.randbits(48))
        with ExitStack() as stack:
            self._server = ControlServer(bind, PeerList.parse(peers), advertise)
            stack.callback(self._server.close)
            workers = []
            for rank, name in zip(layout.ranks, rank_names(self.engine_id, layout), strict=True):
                made = transport(name)
                stack.callback(made.close)
                workers.append(PrefillWorker(rank, made))
            side = PrefillSide(self.engine_id, layout, [worker.agent_data for worker in workers], lease_seconds)
            self._coordinator = PrefillCoordinator(side, self._server, workers, clock, self._recorder)
            self._thread = PollingThread(self.engine_id, self._coordinator)
            stack.pop_all()

    def __enter__(self) -> PrefillEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where decode engines reach it."""
        return self._server.address

    def offer(
        self,
        request_id: str,
        num_tokens: int,
        blocks: BlockTables,
        on_release: OnRelease | None = None,
        lease_seconds: float | None = None,
    ) -> OfferReference | None:
        """Offers the first ``num_tokens`` tokens of a request; never waits.

        ``blocks`` are logical block ids per group, and stay pinned until ``on_release`` is called (once, on the polling
        thread, must be quick). With no valid token nothing is offered: the blocks are released at once and there is no
        reference. Raises ``BlockTableError`` for ids that this engine does not have.
        """
        self._require_alive()
        if not 0 <= num_tokens <= MOST_TOKENS or not 0 < len(request_id) <= MOST_ID_LETTERS:
            raise LocalProtocolError(
                f"offer {request_id[:40]!r}: num_tokens is {num_tokens}, the id has {len(request_id)} letters; "
                f"at most {MOST_TOKENS} tokens and 1 to {MOST_ID_LETTERS} letters can be offered"
            )
        tables = checked_tables("source", self.layout, blocks)
        reference = OfferReference(
            self.engine_id, self._server.host, self._server.port, request_id, next(self._generations), num_tokens,
            tables, self.layout.parallel.tp,
        )  # fmt: skip
        if lease_seconds is not None:
            checked_lease(lease_seconds)
        announcement: Future[Released] = Future()
        if on_release is not None:
            announcement.add_done_callback(lambda future: on_release(future.result()))
        self._coordinator.submit(_Offer(reference, lease_seconds, announcement))
        self._thread.wake()
        return reference if num_tokens else None

    def withdraw(self, reference: OfferReference) -> None:
        """Takes an offer back. It is released at once, or when the engine that reads it has finished."""
        self._coordinator.submit(_Withdraw(reference.offer))
        self._thread.wake()

    def metrics(self) -> Metrics:
        """What was done so far."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Releases all offers and ends, in bounded time."""
        self._thread.close()

    def _require_alive(self) -> None:
        if not self._thread.alive:
            raise LocalProtocolError(f"engine {self.engine_id}: it is closed; make a new one")
