"""What an engine's author calls to offer blocks to decode engines, from any thread.

An offer never waits: its generation number is taken here, and the rest is queued for the polling thread, which drives a
``PrefillCoordinator``.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from threading import Lock

from kvweave.core.block_table import BlockTables
from kvweave.core.layout import EngineLayout
from kvweave.errors import ConfigurationError, LocalProtocolError
from kvweave.protocol.messages import MOST_ID_LETTERS, MOST_TOKENS
from kvweave.protocol.offer import checked_lease
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import PrefillSide
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.clock import Clock, boot_time
from kvweave.runtime.closing import Closing
from kvweave.runtime.control import ControlServer, identity_of
from kvweave.runtime.drains import drain_command
from kvweave.runtime.events import PrefillLink
from kvweave.runtime.keys import CurveKeys
from kvweave.runtime.links import Patient
from kvweave.runtime.metrics import Metrics, Observer, Recorder
from kvweave.runtime.naming import TransportFactory, checked_engine_id, rank_names, require_workers
from kvweave.runtime.polling import PollingThread
from kvweave.runtime.prefill_coordinator import (
    BeginTransfer,
    Offer,
    PrefillCommand,
    PrefillCoordinator,
    Released,
    Withdraw,
)
from kvweave.runtime.tables import checked_tables
from kvweave.runtime.tracing import Attributes, NoTracer, Span, Tracer
from kvweave.runtime.transfer import Making, OnRelease, ProgressiveTransfer, checked_transfer_id
from kvweave.runtime.workers import PrefillWorker


class PrefillEngine(Closing):
    """An engine whose finished prompts can be fetched.

    ``layout`` has the real addresses of every rank's memory, which is registered here. ``transport`` makes one
    transport per rank from a unique name; where the ranks' workers live in other processes, ``workers`` are their links
    instead, in the order of the layout's ranks, and belong to the engine from now on. ``bind`` is where decode engines
    reach the control channel (``host:port``, port 0 takes a free one); on several machines name their hosts or networks
    in ``peers``. ``keys`` closes the channel to everybody without an allowed key, and is what several machines should
    have. ``advertise`` is the host that references name, when it is not the bound one. ``engine_id`` must be new with
    every restart, and is made up when not given. With ``checksums`` it computes those of claimed blocks for decode
    engines that compare them, which is for finding faults: it takes time.
    """

    def __init__(
        self,
        layout: EngineLayout,
        *,
        transport: TransportFactory | None = None,
        workers: Sequence[PrefillLink] = (),
        engine_id: str | None = None,
        bind: str = "127.0.0.1:0",
        advertise: str | None = None,
        peers: Sequence[str] = (),
        keys: CurveKeys | None = None,
        lease_seconds: float = 30.0,
        clock: Clock = boot_time,
        observer: Observer | None = None,
        tracer: Tracer | None = None,
        checksums: bool = False,
    ) -> None:
        checked_lease(lease_seconds)
        self.layout = layout
        self.engine_id = checked_engine_id("prefill", engine_id, keys)
        self._recorder = Recorder(observer)
        self._draining = False
        self._beginning = Lock()
        self._transfer_ids: set[str] = set()
        self._tracer = tracer or NoTracer()
        self._clock = clock
        self._generations = itertools.count(secrets.randbits(48))
        with ExitStack() as stack:
            self._server = ControlServer(bind, PeerList.parse(peers), advertise, keys)
            stack.callback(self._server.close)
            for worker in workers:
                stack.callback(worker.close)
            remote = bool(workers)
            if transport is not None:
                workers = _local_workers(self.engine_id, layout, transport, stack)
            require_workers(self.engine_id, layout, workers)
            side = PrefillSide(
                self.engine_id, layout, [worker.agent_data for worker in workers], lease_seconds, identity_of
            )
            summed = layout.ranks if checksums else ()
            if checksums and remote:
                raise ConfigurationError("checksums: the ranks live in other processes, whose memory is not seen here")
            self._coordinator = PrefillCoordinator(side, self._server, workers, clock, self._recorder, summed)
            self._thread = PollingThread(self.engine_id, Patient(self._coordinator) if remote else self._coordinator)
            stack.pop_all()

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
        traceparent: str | None = None,
    ) -> OfferReference | None:
        """Offers the first ``num_tokens`` tokens of a request; never waits.

        ``blocks`` are logical block ids per group, and stay pinned until ``on_release`` is called (once, on the polling
        thread, must be quick). With no valid token nothing is offered: the blocks are released at once and there is no
        reference. Raises ``BlockTableError`` for ids that this engine does not have. ``traceparent`` is that of the
        request's own span, where there is one.
        """
        tables = checked_tables("source", self.layout, blocks)
        return self._make(Making(request_id, num_tokens, tables, on_release, lease_seconds, traceparent))

    def begin_transfer(self, transfer_id: str, request_id: str, prompt: str = "") -> ProgressiveTransfer:
        """A prompt that is offered while it is prefilled, to whoever follows this id (``DecodeEngine.follow``).

        Where the follower says what the prompt is called, it must be this ``prompt``, such as a hash of its tokens.
        Raises ``LocalProtocolError`` for an id that could be guessed, or that another request has at this moment.
        """
        self._require_taking(request_id)
        checked_transfer_id(transfer_id)
        with self._beginning:
            if transfer_id in self._transfer_ids:
                raise LocalProtocolError(f"request {request_id[:40]!r}: another one has its transfer id; make a new id")
            self._transfer_ids.add(transfer_id)
        return ProgressiveTransfer(
            BeginTransfer(transfer_id, prompt), request_id, self.layout, self._make, self._submit,
            self._transfer_ids.discard,
        )  # fmt: skip

    def withdraw(self, reference: OfferReference) -> None:
        """Takes an offer back. It is released at once, or when the engine that reads it has finished.

        An unknown or released one is ignored, also after the engine has ended.
        """
        with suppress(LocalProtocolError):
            self._coordinator.submit(Withdraw(reference.offer))
        self._thread.wake()

    def drain(self) -> Future[None]:
        """Takes no new offer from now on; the future says when all that were made have been released.

        They can still be fetched. Offering anew raises ``LocalProtocolError``.
        """
        self._draining = True
        command = drain_command()
        self._coordinator.submit(command)
        self._thread.wake()
        return command.future

    def metrics(self) -> Metrics:
        """What was done so far."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Releases all offers and ends, in bounded time."""
        self._thread.close()

    def _make(self, making: Making) -> OfferReference | None:
        self._require_taking(making.request_id)
        offered_at = self._clock()
        if not 0 <= making.num_tokens <= MOST_TOKENS or not 0 < len(making.request_id) <= MOST_ID_LETTERS:
            raise LocalProtocolError(
                f"offer {making.request_id[:40]!r}: num_tokens is {making.num_tokens}, the id has "
                f"{len(making.request_id)} letters; at most {MOST_TOKENS} tokens and 1 to {MOST_ID_LETTERS} letters "
                "can be offered"
            )
        if making.lease_seconds is not None:
            checked_lease(making.lease_seconds)
        attributes: Attributes = {
            "engine_id": self.engine_id, "request_id": making.request_id, "num_tokens": making.num_tokens,
        }  # fmt: skip
        span = self._tracer.begin("kvweave.offer", making.traceparent, attributes)
        reference = OfferReference(
            self.engine_id, self._server.host, self._server.port, making.request_id, next(self._generations),
            making.num_tokens, making.tables, self.layout.parallel.tp, span.traceparent,
        )  # fmt: skip
        announcement: Future[Released] = Future()
        announcement.add_done_callback(lambda future: self._end(span, offered_at, future.result()))
        on_release = making.on_release
        if on_release is not None:
            announcement.add_done_callback(lambda future: on_release(future.result()))
        self._submit(Offer(reference, making.lease_seconds, announcement, making.transfer_id, making.final))
        return reference if making.num_tokens else None

    def _submit(self, command: PrefillCommand) -> None:
        self._coordinator.submit(command)
        self._thread.wake()

    def _require_taking(self, request_id: str) -> None:
        self._require_alive()
        if self._draining:
            raise LocalProtocolError(f"engine {self.engine_id}: it is being drained; offer {request_id[:40]!r} nowhere")

    def _end(self, span: Span, offered_at: float, released: Released) -> None:
        """Notes how long an offer's blocks were pinned; on the polling thread."""
        now = self._clock()
        self._recorder.add("seconds", "pinned", now - offered_at)
        span.stage("pinned", offered_at, now)
        span.end(released.reason.value, {})

    def _require_alive(self) -> None:
        if not self._thread.alive:
            raise LocalProtocolError(f"engine {self.engine_id}: it is closed; make a new one")


def _local_workers(
    engine_id: str, layout: EngineLayout, transport: TransportFactory, stack: ExitStack
) -> list[PrefillWorker]:
    workers = []
    for rank, name in zip(layout.ranks, rank_names(engine_id, layout), strict=True):
        made = transport(name)
        stack.callback(made.close)
        workers.append(PrefillWorker(rank, made))
    return workers
