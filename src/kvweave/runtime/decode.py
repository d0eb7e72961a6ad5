"""What an engine's author calls to fetch what prefill engines offer, from any thread.

Every call hands a command to the polling thread, which drives a ``DecodeCoordinator``. Failures reach the caller
through the fetch's handle, always as one of our errors.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

from kvweave.core.block_table import BlockTables
from kvweave.core.layout import EngineLayout
from kvweave.errors import BlockTableError, ConfigurationError, LocalProtocolError
from kvweave.protocol.follow_entry import Pursuit, Target
from kvweave.protocol.messages import MOST_TOKENS
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.sides import DecodeSide
from kvweave.protocol.timing import Timing
from kvweave.runtime.addresses import PeerList, join_address, split_address
from kvweave.runtime.checksums import ChecksumBook
from kvweave.runtime.clock import Clock, boot_time
from kvweave.runtime.closing import Closing
from kvweave.runtime.control import ControlClient, ControlServer
from kvweave.runtime.decode_commands import Abort, Begin, BeginFollow, BeginFollowed, Connect, DecodeCommand, Hold, Peer
from kvweave.runtime.decode_coordinator import DecodeCoordinator
from kvweave.runtime.desk import Desk
from kvweave.runtime.drains import drain_command
from kvweave.runtime.events import DecodeLink
from kvweave.runtime.handle import Fetch
from kvweave.runtime.keys import CurveKeys
from kvweave.runtime.links import Patient
from kvweave.runtime.metrics import Metrics, Observer, Recorder
from kvweave.runtime.naming import TransportFactory, checked_engine_id, rank_names, require_workers
from kvweave.runtime.polling import PollingThread
from kvweave.runtime.tables import checked_tables
from kvweave.runtime.tracing import Tracer
from kvweave.runtime.transfer import checked_transfer_id
from kvweave.runtime.workers import DecodeWorker


class DecodeEngine(Closing):
    """An engine that fetches prompts from prefill engines.

    ``layout`` has the real addresses of every rank's memory, which is registered here. ``transport`` makes one
    transport per rank from a unique name; where the ranks' workers live in other processes, ``workers`` are their links
    instead, in the order of the layout's ranks, and belong to the engine from now on. ``peers`` are the prefill
    engines: ``host:port`` is handshaken at once and again after every loss; hosts and networks without a port are
    merely allowed. Loopback is always allowed. ``keys`` closes the control channel to everybody without an allowed key;
    where several are allowed, ``peers`` says who has which: ``name@host:port``. ``engine_id`` must be new with every
    restart, and is made up when not given. At ``bind``, where it is given, observers may ask for the layout
    (``kvweave check``). With ``checksums`` every delivered byte is compared with its source's, which
    is for finding faults: it takes time, and prefill engines that compute them.
    """

    def __init__(
        self,
        layout: EngineLayout,
        *,
        transport: TransportFactory | None = None,
        workers: Sequence[DecodeLink] = (),
        engine_id: str | None = None,
        peers: Sequence[str] = (),
        keys: CurveKeys | None = None,
        timing: Timing | None = None,
        clock: Clock = boot_time,
        observer: Observer | None = None,
        tracer: Tracer | None = None,
        bind: str | None = None,
        checksums: bool = False,
    ) -> None:
        self.layout = layout
        self.engine_id = checked_engine_id("decode", engine_id, keys)
        self.peers = PeerList.parse(peers)
        self._recorder = Recorder(observer)
        self._draining = False
        self._server: ControlServer | None = None
        self._numbers = itertools.count(secrets.randbits(48) + 1)
        with ExitStack() as stack:
            client = ControlClient(self.peers, keys)
            stack.callback(client.close)
            desk = None
            if bind is not None:
                self._server = ControlServer(bind, self.peers, None, keys)
                desk = Desk(self._server, self.engine_id, layout, self._recorder)
                stack.callback(desk.close)
            for worker in workers:
                stack.callback(worker.close)
            remote = bool(workers)
            if transport is not None:
                workers = _local_workers(self.engine_id, layout, transport, clock, stack, checksums)
            if checksums and remote:
                raise ConfigurationError("checksums: the ranks live in other processes, whose memory is not seen here")
            require_workers(self.engine_id, layout, workers)
            side = DecodeSide(self.engine_id, layout, timing or Timing())
            self._coordinator = DecodeCoordinator(layout, side, client, workers, clock, self._recorder, tracer, desk)
            self._thread = PollingThread(self.engine_id, Patient(self._coordinator) if remote else self._coordinator)
            stack.pop_all()
        for address in self.peers.addresses:
            self.connect(address)

    @property
    def address(self) -> str | None:
        """Where observers reach it, where it has a ``bind``."""
        return None if self._server is None else self._server.address

    def connect(self, address: str) -> Future[Peer]:
        """Handshakes with a prefill engine and keeps it connected; the future says when its connections are warm.

        It fails with ``IncompatiblePeer`` or ``TransportError``; the engine goes on asking.
        """
        self._require_alive()
        host, port = split_address(address)
        if not self.peers.allows(host):
            raise LocalProtocolError(f"connect: {host} is not among this engine's peers; add it: peers=[{host!r}]")
        future: Future[Peer] = Future()
        future.set_running_or_notify_cancel()  # from here on it can not be cancelled, so the thread may always answer
        self._submit(Connect(join_address(host, port), future))
        return future

    def fetch(self, reference: OfferReference | dict[str, Any], blocks: BlockTables, start_token: int = 0) -> Fetch:
        """Begins to fetch an offer's tokens from ``start_token`` on into ``blocks`` (logical ids per group).

        ``reference`` is the offer's or a request's ``kv_transfer_params``. Raises ``BlockTableError`` for blocks that
        this engine does not have, ``RemoteProtocolError`` for params that are malformed or name a host that is not
        allowed. Whatever goes wrong later is in the handle.
        """
        self._require_taking()
        checked = self._checked(reference)
        fetch = Fetch(next(self._numbers), checked.request_id, self._abort)
        self.begin(fetch, checked, blocks, start_token)
        return fetch

    def hold(self, reference: OfferReference | dict[str, Any]) -> Fetch:
        """Keeps an offer alive for a queued request, by heartbeats, until ``begin`` or ``Fetch.abort``.

        The handle fails when the offer ends meanwhile.
        """
        self._require_taking()
        checked = self._checked(reference)
        fetch = Fetch(next(self._numbers), checked.request_id, self._abort)
        self._coordinator.submit(Hold(fetch, checked))  # in time by the thread's own clock: mostly its begin is next
        return fetch

    def begin(
        self,
        fetch: Fetch,
        reference: OfferReference | dict[str, Any],
        blocks: BlockTables,
        start_token: int = 0,
        fenced: bool = False,
    ) -> None:
        """Begins the fetch of a held offer; see ``fetch``.

        ``fenced`` reads wait in each rank's process for ``RankService.allow``, where the target must be prepared first.
        """
        checked = self._checked(reference)
        tables = checked_tables("target", self.layout, blocks)
        if not 0 <= start_token <= checked.num_tokens:
            raise BlockTableError(
                f"fetch {checked.request_id}: start_token {start_token} of {checked.num_tokens} offered tokens; "
                "start inside the offer"
            )
        fetch.begin()
        fence = fetch.number if fenced else None
        self._submit(Begin(fetch, Order(checked.address, checked, tables, start_token, fence)))

    def follow(
        self,
        transfer_id: str,
        address: str,
        blocks: BlockTables | None = None,
        start_token: int = 0,
        request_id: str = "followed",
        num_tokens: int | None = None,
        prompt: str | None = None,
    ) -> Fetch:
        """Fetches a prompt while the prefill engine at ``address`` prefills and offers it, from ``start_token`` on.

        ``transfer_id`` is the one that the engine was given for it (``PrefillEngine.begin_transfer``); whoever knows it
        may read the prompt's cache, so make it by ``new_transfer_id``. ``blocks`` are for the whole prompt; without
        them nothing is read before ``begin_followed``, but the offers are kept alive. The handle ends like any other:
        once, delivered when everything is here. ``request_id`` is what messages call it; ``num_tokens`` and ``prompt``,
        where given, are how many tokens it must have and what it must be called by the prefill engine.

        Raises ``LocalProtocolError`` for an id that is too short or an address that is not allowed.
        """
        self._require_taking()
        self._require_alive()
        checked_transfer_id(transfer_id)
        host, port = split_address(address)
        if not self.peers.allows(host):
            raise LocalProtocolError(f"follow: {host} is not among this engine's peers; add it: peers=[{host!r}]")
        target = None if blocks is None else self._target(blocks, start_token)
        fetch = Fetch(next(self._numbers), request_id, self._abort)
        self._submit(BeginFollow(fetch, Pursuit(join_address(host, port), transfer_id, num_tokens, prompt)))
        if target is not None:
            self._begin_followed(fetch, target)
        return fetch

    def begin_followed(self, fetch: Fetch, blocks: BlockTables, start_token: int = 0, fenced: bool = False) -> None:
        """Gives a followed prompt its blocks; ``fenced`` as in ``begin``."""
        self._require_alive()
        self._begin_followed(fetch, self._target(blocks, start_token, fetch.number if fenced else None))

    def _begin_followed(self, fetch: Fetch, target: Target) -> None:
        fetch.begin()
        self._submit(BeginFollowed(fetch, target))

    def _target(self, blocks: BlockTables, start_token: int, fence: int | None = None) -> Target:
        if not 0 <= start_token <= MOST_TOKENS:
            raise BlockTableError(f"follow: start_token is {start_token}; it lies between 0 and {MOST_TOKENS}")
        return Target(checked_tables("target", self.layout, blocks), start_token, fence)

    def drain(self) -> Future[None]:
        """Takes nothing new from now on; the future says when everything that was held or fetched has ended.

        What is held may still begin. Fetching anew raises ``LocalProtocolError``.
        """
        self._draining = True
        command = drain_command()
        self._submit(command)
        return command.future

    def metrics(self) -> Metrics:
        """What was done so far."""
        return self._recorder.snapshot()

    def close(self) -> None:
        """Ends all fetches and the engine, in bounded time."""
        self._thread.close()

    def _abort(self, number: int) -> None:
        with suppress(LocalProtocolError):  # an engine that has ended has aborted everything
            self._submit(Abort(number))

    def _checked(self, reference: OfferReference | dict[str, Any]) -> OfferReference:
        self._require_alive()
        params = reference.params() if isinstance(reference, OfferReference) else reference
        return OfferReference.from_params(params, self.peers.allows)

    def _submit(self, command: DecodeCommand) -> None:
        self._coordinator.submit(command)
        self._thread.wake()

    def _require_taking(self) -> None:
        if self._draining:
            raise LocalProtocolError(f"engine {self.engine_id}: it is being drained; send the request to another one")

    def _require_alive(self) -> None:
        if not self._thread.alive:
            raise LocalProtocolError(f"engine {self.engine_id}: it is closed; make a new one")


def _local_workers(
    engine_id: str, layout: EngineLayout, transport: TransportFactory, clock: Clock, stack: ExitStack, checksums: bool
) -> list[DecodeWorker]:
    workers = []
    for rank, name in enumerate(rank_names(engine_id, layout)):
        made = transport(name)
        stack.callback(made.close)
        checks = ChecksumBook(layout.ranks[rank]) if checksums else None
        workers.append(DecodeWorker(rank, layout, made, clock, checks=checks))
    return workers
