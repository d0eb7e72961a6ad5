"""What the polling thread of a decode engine drives: fetches, peers, control channel and workers.

It carries out the effects of ``DecodeSide`` and tells it what happened. Failures reach the caller through the fetch's
handle, always as one of our errors.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from kvweave.core.layout import EngineLayout
from kvweave.errors import IncompatiblePeer, LocalProtocolError, RemoteProtocolError
from kvweave.protocol import effects as effects_of
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.effects import (
    CancelReads,
    ConnectPeer,
    DecodeEffect,
    Drained,
    DropPeer,
    Failed,
    FailureReason,
    FetchPart,
    PeerFailed,
    PeerLost,
    PeerReady,
    PostReads,
    RetryReads,
    Reusable,
    Send,
)
from kvweave.protocol.messages import ChecksumRequest, Checksums, Claim, HandshakeReply
from kvweave.protocol.sides import DecodeSide
from kvweave.runtime.checksums import ChecksumBook
from kvweave.runtime.clock import Clock
from kvweave.runtime.commands import CommandQueue
from kvweave.runtime.control import ControlClient
from kvweave.runtime.decode_commands import Abort, Begin, BeginFollow, BeginFollowed, Connect, DecodeCommand, Hold, Peer
from kvweave.runtime.desk import Desk
from kvweave.runtime.drains import Drain, Drains
from kvweave.runtime.events import (
    Connected,
    DecodeLink,
    NotConnected,
    ReadFailed,
    ReadsEnded,
    WorkerCommand,
    WorkerEvent,
)
from kvweave.runtime.follow_record import FollowRecord
from kvweave.runtime.handle import failure_error
from kvweave.runtime.log_lines import LogLines, plain
from kvweave.runtime.metrics import Recorder
from kvweave.runtime.naming import require_own_name
from kvweave.runtime.peer_line import describe_peer
from kvweave.runtime.polling import Activity
from kvweave.runtime.record import FetchRecord
from kvweave.runtime.tracing import NoSpan, NoTracer, Span, Tracer
from kvweave.runtime.workers import DecodeWorker

logger = logging.getLogger("kvweave")


class DecodeCoordinator:
    """Fetches, peers, control channel and workers of one engine, driven by one thread."""

    def __init__(
        self,
        layout: EngineLayout,
        side: DecodeSide,
        client: ControlClient,
        workers: Sequence[DecodeLink],
        clock: Clock,
        recorder: Recorder,
        tracer: Tracer | None = None,
        desk: Desk | None = None,
    ) -> None:
        self._layout = layout
        self._side = side
        self._client = client
        self._workers = workers
        self._clock = clock
        self._recorder = recorder
        self._commands: CommandQueue[DecodeCommand] = CommandQueue()
        self._records: dict[int, FetchRecord] = {}
        self._layouts: dict[str, EngineLayout] = {}
        self._peers: dict[str, Peer] = {}
        self._waiting: dict[str, list[Future[Peer]]] = {}
        self._drains = Drains(side.engine_id)
        self._desk = desk
        self._tracer = tracer or NoTracer()
        self._log = LogLines(side.engine_id, recorder)

    def submit(self, command: DecodeCommand) -> None:
        """Queues a command, from any thread; raises ``LocalProtocolError`` when the engine has ended."""
        self._commands.put(command)

    def sockets(self) -> Sequence[Any]:
        """See ``Pollable``."""
        asked = [] if self._desk is None else self._desk.sockets()
        return [*asked, *self._client.sockets(), *(socket for worker in self._workers for socket in worker.sockets())]

    def poll(self) -> Activity:
        """See ``Pollable``."""
        for command in self._commands.take():
            self._carry_out(command)
        for rank, worker in enumerate(self._workers):
            for event in worker.poll():
                self._hear(event)
            if isinstance(worker, DecodeWorker) and worker.checks is not None:
                self._ask_for_checksums(rank, worker.checks)
        for address, data in self._client.receive():
            self._receive(address, data)
        for address, text in self._client.failures():
            self._perform(self._side.lose(self._clock(), address, f"{address}: {text}"))
        now = self._clock()
        self._perform(self._side.handle_timer(now))
        if self._desk is not None:
            self._desk.poll(now)
        self._log.tick(now)
        if self._side.fetches.reading:
            return Activity.READING
        if self._side.fetches.begun or self._side.peers.opening:
            return Activity.SERVING
        return Activity.WAITING if len(self._side.follows) else Activity.IDLE

    def begin_closing(self) -> None:
        """See ``Pollable``."""
        self._perform(self._side.close(self._clock()))

    def close(self, cause: BaseException | None) -> None:
        """See ``Pollable``. Whatever is still waited for fails; its target memory is written no more."""
        try:
            for worker in self._workers:
                worker.close()
        finally:
            self._client.close()
            if self._desk is not None:
                self._desk.close()
            self._end_everything(f"the engine has ended: {cause}" if cause else "the engine is closed")

    def _end_everything(self, text: str) -> None:
        late = self._commands.close()
        for command in late:
            if isinstance(command, Hold | Begin | BeginFollow):
                record = self._new_record(0.0, command, NoSpan())
                self._records.setdefault(command.fetch.number, record)
        for record in self._records.values():
            if not record.fetch.done():
                failed = Failed(record.fetch.number, FailureReason.CLOSED, text)
                record.span.end(failed.reason.value, {})
                record.fetch.fail(failed, failure_error(failed, None))
            record.fetch.free()
        self._records.clear()
        connects = [command.future for command in late if isinstance(command, Connect)]
        for future in itertools.chain(connects, *self._waiting.values()):
            future.set_exception(LocalProtocolError(text))
        self._waiting.clear()
        self._drains.end_all(command.future for command in late if isinstance(command, Drain))

    def _carry_out(self, command: DecodeCommand) -> None:
        now = self._clock()
        match command:
            case Hold(fetch, reference):
                self._records[fetch.number] = self._new_record(now, command)
                self._perform(self._side.hold(now, fetch.number, reference.address, reference))
            case Begin(fetch):
                self._begin(now, command)
            case BeginFollow(fetch, pursuit):
                self._recorder.add("fetches")
                self._records[fetch.number] = self._new_record(now, command)
                self._perform(self._side.follow(now, fetch.number, pursuit))
            case BeginFollowed(fetch, target):
                self._perform(self._side.begin_followed(now, fetch.number, target))
            case Abort(number):
                self._perform(self._side.abort(now, number))
            case Connect(address, future):
                self._connect(now, address, future)
            case Drain(future):
                self._drains.begin(future)
                self._perform(self._side.drain(now))

    def _begin(self, now: float, command: Begin) -> None:
        number = command.fetch.number
        if command.fetch.done():
            return
        self._recorder.add("fetches")
        if number not in self._records:
            self._records[number] = self._new_record(now, command)
        self._records[number].begin(now)
        self._perform(self._side.fetch(now, number, command.order))

    def _new_record(self, now: float, command: Hold | Begin | BeginFollow, span: Span | None = None) -> FetchRecord:
        fetch = command.fetch
        if isinstance(command, BeginFollow):
            address = command.pursuit.address
            return FollowRecord(fetch, address, self._layout, now, span or self._span(fetch.request_id, address))
        reference = command.reference if isinstance(command, Hold) else command.order.reference
        span = span or self._span(reference.request_id, reference.address, reference.traceparent)
        return FetchRecord(fetch, reference, self._layout, now, span)

    def _span(self, request_id: str, address: str, traceparent: str | None = None) -> Span:
        attributes = {"engine_id": self._side.engine_id, "request_id": request_id, "address": address}
        return self._tracer.begin("kvweave.fetch", traceparent, attributes)

    def _record(self, number: int) -> FetchRecord | None:
        """The record of a fetch; a followed transfer has one for all its fetches."""
        owner = self._side.follows.owner(number)
        return self._records.get(number if owner is None else owner)

    def _connect(self, now: float, address: str, future: Future[Peer]) -> None:
        if address in self._peers:
            future.set_result(self._peers[address])
            return
        self._waiting.setdefault(address, []).append(future)
        self._perform(self._side.name_peer(now, address))

    def _receive(self, address: str, data: bytes) -> None:
        now = self._clock()
        try:
            message = decode(data)
            if isinstance(message, HandshakeReply):
                require_own_name(message.engine_id, self._client.key_of(address))
            if isinstance(message, Checksums):
                self._compare(address, message)
            effects = self._side.receive(now, address, message)
        except IncompatiblePeer as error:
            effects = self._side.misfit(now, address, error.problems)
        except RemoteProtocolError as error:
            self._recorder.add("malformed_messages")
            effects = self._side.lose(now, address, str(error))
        self._perform(effects)

    def _ask_for_checksums(self, rank: int, checks: ChecksumBook) -> None:
        for fetch, pieces in checks.take():
            record = self._record(fetch)
            layout = None if record is None else self._layouts.get(record.reference.address)
            if record is None or layout is None:
                continue
            source = [held.coordinates for held in layout.ranks].index(pieces.source)
            request = ChecksumRequest(
                fetch, record.reference.offer, rank, source, pieces.source_addresses, pieces.sizes
            )
            self._perform([Send(record.reference.address, request)])
            self._recorder.add("checked_pieces", amount=len(pieces.sizes))

    def _compare(self, address: str, message: Checksums) -> None:
        """Hands checksums to the rank that asked; those of another peer's fetch are nobody's."""
        record = self._record(message.claim)
        if record is not None and record.reference.address == address and message.asking < len(self._workers):
            worker = self._workers[message.asking]
            if isinstance(worker, DecodeWorker):
                worker.compare(message.claim, message.sums)

    def _hear(self, event: WorkerEvent) -> None:
        now = self._clock()
        record = self._record(event.fetch) if isinstance(event, ReadFailed | ReadsEnded) else None
        match event:
            case Connected():
                effects = self._side.connected(now, event.address, event.attempt, event.rank)
            case NotConnected():
                effects = self._side.not_connected(now, event.address, event.attempt, event.text, event.problems)
            case ReadFailed():
                if record is not None and not event.elsewhere:
                    record.cause = event.error
                text = f"rank {event.rank}: {event.text}"
                effects = self._side.read_failed(now, event.fetch, event.rank, event.reason, text, event.elsewhere)
            case ReadsEnded():
                if record is not None:
                    record.add(event)
                effects = self._side.reads_ended(now, event.fetch, event.rank, event.completed_at, event.attended)
        self._perform(effects)

    def _perform(self, effects: Iterable[DecodeEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case FetchPart(fetch=number, order=order):
                    record = self._record(number)
                    if isinstance(record, FollowRecord):
                        record.turn(self._clock(), order.reference, order.portion is None or order.portion.others)
                case PostReads() | RetryReads() | CancelReads() | ConnectPeer() | DropPeer():
                    self._command_workers(effect)
                case PeerReady() | PeerLost() | PeerFailed():
                    self._note_peer(effect)
                case effects_of.Delivered() | Failed() | Reusable():
                    self._report(effect)
                case Drained():
                    self._drains.end()

    def _send(self, effect: Send) -> None:
        message = effect.message
        if not self._client.send(str(effect.to), encode(message)):
            self._recorder.add("unsent_messages")
        record = self._record(message.claim) if isinstance(message, Claim) else None
        if record is not None and not record.claim(self._clock()):
            self._recorder.add("repeated_claims")

    def _command_workers(self, command: WorkerCommand) -> None:
        record = self._record(command.fetch) if isinstance(command, PostReads | RetryReads) else None
        if record is not None and isinstance(command, PostReads):
            record.posted_at = self._clock()
        elif record is not None:
            record.retry(self._clock())
            self._recorder.add("retried_reads")
        if isinstance(command, ConnectPeer):
            self._layouts[command.address] = command.layout
        for worker in self._workers:
            worker.submit(command)
        if isinstance(command, DropPeer):
            self._layouts.pop(command.address, None)
            self._client.drop(command.address)

    def _note_peer(self, effect: PeerReady | PeerLost | PeerFailed) -> None:
        waiting = self._waiting.pop(effect.address, [])
        match effect:
            case PeerReady(address, engine_id, _):
                self._recorder.add("handshakes")
                peer = self._peers[address] = Peer(address, engine_id, self._layouts[address])
                line = describe_peer(self._side.engine_id, self._layout, engine_id, peer.layout)
                logger.info("prefill engine %s at %s is ready: %s", plain(engine_id), address, plain(line))
                for future in waiting:
                    future.set_result(peer)
                return
            case PeerLost():
                self._recorder.add("peers_lost")
            case PeerFailed():
                self._recorder.add("handshake_failures", "incompatible" if effect.problems else "unreachable")
        who = f"prefill engine at {effect.address}"
        text = f"{who}: {effect.text.removeprefix(f'{effect.address}: ')}"
        self._log.note(self._clock(), logging.WARNING, who, text)
        self._peers.pop(effect.address, None)
        failed = Failed(
            0, FailureReason.PEER_LOST, effect.text, effect.problems if isinstance(effect, PeerFailed) else ()
        )
        for future in waiting:
            future.set_exception(failure_error(failed, None))

    def _report(self, effect: effects_of.Delivered | Failed | Reusable) -> None:
        record = self._records[effect.fetch]
        match effect:
            case effects_of.Delivered():
                delivered = record.delivered(self._clock())
                record.span.end("delivered", {"nbytes": delivered.nbytes, "num_rows": delivered.num_rows})
                self._recorder.add("delivered")
                self._recorder.add("bytes", amount=delivered.nbytes)
                self._recorder.add("rows", amount=delivered.num_rows)
                for stage, seconds in delivered.seconds.items():
                    self._recorder.add("seconds", stage, seconds)
                del self._records[effect.fetch]
                record.fetch.deliver(delivered)
            case Failed():
                self._recorder.add("failed", effect.reason.value)
                record.span.end(effect.reason.value, {"text": plain(effect.text)})
                line = f"request {record.fetch.request_id}: {effect.reason.value}: {effect.text}"
                level = logging.DEBUG if effect.reason is FailureReason.ABORTED else logging.WARNING
                self._log.note(self._clock(), level, effect.reason.value, line)
                record.fetch.fail(effect, failure_error(effect, record.cause))
            case Reusable():
                del self._records[effect.fetch]
                record.fetch.free()
