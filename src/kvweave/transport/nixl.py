"""The NIXL transport: real reads over UCX (RDMA, shared memory, TCP). Its calls are in ``nixl_agent``; from peers on
this machine, once NIXL has proved the connection, the system's own copies are taken (``host_agent``), or slots of
their rings where they lie (``mapped_source``).

A read is cut into posts of at most 8 MB or 2,000 rows, because posting *is* the copy on shared memory, in the calling
thread; each ``progress()`` posts a few of them, of one read after the other, so that nothing waits long behind a big
read, and many small ones are posted at once::

    read A  [a0 a1 a2 a3 ...]    progress: post a0 b0 c0 a1 a2 | post a3 a4 a5 a6 | ...
    read B  [b0]
    read C  [c0]

What NIXL and UCX do, and what follows from it here (NIXL 1.5):

- The agent runs without NIXL's progress thread, which never blocks and burns a core per agent. So both sides must call
  ``progress()``, for connection set-up too.
- ``make_connection`` sets up nothing that the first read does not wait for again. ``connect`` therefore reads a few
  probe bytes, and compares them.
- A posted piece is never released before it has ended: UCX cannot call a read back, and its bytes could still arrive
  (``nixlUcxBackendReqH::release`` says so itself). Cancelling and disconnecting let posted pieces end first.
- When one read finds its peer dead, NIXL forgets the peer; other reads of it then end with "not found".
- Disconnecting from a peer that lives leaves a socket open on both sides, until one of the two agents ends (UCX keeps
  watching the peer over it). So keep a peer while it lives; those of an ended peer are closed.
- On shared memory nobody but the reader checks a range, and deregistering takes nothing away from it.
- NIXL and UCX do not survive every malformed agent data: it may only be taken from authenticated peers.

One thread at a time may use a transport; it may be created and filled by another one than polls it later.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvweave.errors import ConfigurationError, LocalProtocolError, TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES, AgentData
from kvweave.transport.base import MemoryRegion, ReadHandle, ReadRows, ReadState, failed_read, peer_lost
from kvweave.transport.choice import Choice
from kvweave.transport.host_agent import HostAgent
from kvweave.transport.known_peer import KnownPeer
from kvweave.transport.landing import Landing
from kvweave.transport.mapped_source import MappedSource, map_ring
from kvweave.transport.neighbour import Neighbour
from kvweave.transport.piecewise import MOST_POST_BYTES, MOST_POST_ROWS, PiecewiseRead, ProbeRead
from kvweave.transport.rates import STAGING, Clock, Rates, Trials, copies_of_our_own
from kvweave.transport.read_source import ReadSource
from kvweave.transport.regions import MEMORY_KINDS, RegionTable, outside_error
from kvweave.transport.staged_source import StagedSource
from kvweave.transport.staging_ring import StagingRing

MOST_POSTED_PIECES = 5
MOST_BATCH_BYTES = 4 * MOST_POST_BYTES + MOST_POST_BYTES // 2
MOST_BATCH_ROWS = 2 * MOST_POST_ROWS
ROUND_BATCHES = 2
"""A batch is prepared together and then posted, which takes some milliseconds: a few full posts, and what is left over
of a read behind its last one. One ``progress()`` posts two batches. What else a round of the polling thread does takes
half a millisecond, and must be a small part of a large read."""
MOST_GATHERS = 32
"""Slots gathered in one round, with progress in between, for which readers wait."""
MOST_LOOKS = 60
"""Looks for messages of readers that were served just now, in one round."""
PROBE_SLOTS = 4_096


class NixlTransport:
    """A ``Transport`` over NIXL. ``name`` must be unique among all engines, and new with every restart.

    ``staging`` says which reads the source gathers: what the cost model says (``auto``), ``always``, or ``never``;
    raises ``ConfigurationError`` for anything else. ``same_host`` says whether the system's own
    copies are taken from peers of this machine, and their rings are mapped. ``clock`` measures durations.
    """

    def __init__(
        self, name: str, staging: str = "auto", same_host: bool = True, clock: Clock = time.perf_counter
    ) -> None:
        if staging not in STAGING:
            raise ConfigurationError(f"staging: {staging!r} is not known; choose one of {', '.join(STAGING)}")
        self.name = name
        self._staging = staging
        self._same_host = same_host
        self._clock = clock
        self._regions = RegionTable()
        self._peers: dict[str, KnownPeer] = {}
        self._leaving: dict[str, KnownPeer] = {}
        self._reads: deque[PiecewiseRead] = deque()
        self._connections = 0
        self._closed = False
        self._ring: StagingRing | None = None
        self._landing: Landing | None = None
        self._probe = np.frombuffer(bytearray(secrets.token_bytes(PROBE_BYTES)), np.uint8)
        self._landings = np.zeros((PROBE_SLOTS, PROBE_BYTES), np.uint8)
        self._agent = HostAgent(name)
        for own in (self._probe, self._landings):
            self._agent.register_own(own)

    def register(self, regions: Sequence[MemoryRegion]) -> None:
        """See ``Transport``."""
        self._require_open()
        table = self._regions.with_regions(regions)
        added = table.records[len(self._regions) :]
        for kind, memory in enumerate(MEMORY_KINDS):
            chosen = added[added["memory"] == kind]
            if len(chosen):
                self._agent.register(memory, chosen["address"], chosen["nbytes"], chosen["device"])
        self._regions = table

    def agent_data(self) -> bytes:
        """See ``Transport``. From now on there is a staging ring, unless it is never to be used."""
        self._require_open()
        if self._ring is None and self._staging != "never":
            self._ring = StagingRing(self._probe.tobytes())
            self._agent.register_own(self._ring.memory)
        return AgentData(
            self.name, self._regions, os.getpid(), self._probe.ctypes.data, self._probe.tobytes(),
            self._agent.describe(), self._ring.place if self._ring else None,
        ).encode()  # fmt: skip

    def connect(self, agent_data: bytes) -> ReadHandle:
        """See ``Transport``."""
        self._require_open()
        data = AgentData.decode(agent_data)
        known = self._peers.get(data.name)
        if data.name == self.name or data.name in self._leaving or (known and known.data != agent_data):
            raise TransportError(
                TransportErrorKind.REJECTED, f"agent data: the name {data.name!r} is in use; disconnect that peer first"
            )
        if known is None:
            error = self._add_agent(data)
            if error is not None:
                return failed_read(data.name, error)
            neighbour = Neighbour(data.name, data.process, data.probe_address, data.probe)
            known = self._peers[data.name] = KnownPeer(agent_data, data.regions, neighbour)
            if self._staging != "never":
                known.staged = self._staged_source(data)
        landing = self._landings[self._connections % PROBE_SLOTS]
        self._connections += 1
        landing[:] = 0
        probe = ProbeRead(data.name, data.probe_address, landing, data.probe)
        if known.staged is not None and known.choice is None and self._staging == "auto":
            probe.trials = Trials(data.regions, known.staged.place, self._own_landing().for_trials)
        return self._start(probe)

    def read(self, peer: str, rows: ReadRows, attended: bool = True) -> ReadHandle:
        """See ``Transport``. Only checks and cuts the rows: bytes move in ``progress``."""
        self._require_open()
        source = self._peers.get(peer)
        if source is None:
            return failed_read(peer, peer_lost(peer))
        error = outside_error(rows, source.regions, self._regions)
        if error is not None:
            return failed_read(peer, error)
        staging = source.prefers_staged(rows, self._staging, self._clock())
        if source.staged is None or not staging or not attended:
            direct = PiecewiseRead(peer, rows)
            direct.attended = staging or not self._agent.copies(peer, rows)
            return self._start(direct)
        return self._start(source.staged.begin(rows))

    def cancel(self, handle: ReadHandle) -> None:
        """See ``Transport``."""
        handle.cancel(TransportError(TransportErrorKind.CANCELLED, f"read from {handle.peer}: cancelled by its caller"))

    def progress(self) -> int:
        """See ``Transport``. Takes about as long as copying ``ROUND_BATCHES`` batches and ``MOST_GATHERS`` slots."""
        if self._closed:
            return 0
        self._serve()
        for read in tuple(self._reads):
            self._collect(read)
        for peer in tuple(self._peers.values()):
            peer.advance(self._clock())
        for _ in range(ROUND_BATCHES):
            if not self._post_batch():
                break
        for read in self._reads:
            if read.state is ReadState.DONE and read.peer in self._peers:
                self._peers[read.peer].note(read, self._clock())
        self._reads = deque(read for read in self._reads if not read.state.terminal)
        self._let_go()
        return len(self._reads)

    def _serve(self) -> None:
        """Makes progress, gathers for readers, and while they are at it looks a few times more for their messages."""
        gathers, looks = 0, 0
        while gathers < MOST_GATHERS and looks < MOST_LOOKS:
            messages = self._agent.progress()
            if self._ring is None:
                return
            now = self._clock()
            if self._ring.serve(messages, self._regions, now):
                gathers += 1
            elif self._ring.attended(now):
                looks += 1
            else:
                return

    def disconnect(self, peer: str) -> None:
        """See ``Transport``."""
        if peer in self._peers:
            self._drop_peer(peer, peer_lost(peer))
            self._let_go()

    def close(self) -> None:
        """See ``Transport``. Destroys the agent: UCX writes nowhere without it."""
        if self._closed:
            return
        self._closed = True
        self._probe[:] = 0
        if self._ring is not None:
            self._ring.close()
        error = TransportError(TransportErrorKind.UNAVAILABLE, f"transport {self.name}: it was closed")
        for read in self._reads:
            for piece in read.posted:
                self._agent.release(piece)
        for name, peer in (self._peers | self._leaving).items():
            peer.end()
            self._agent.remove(name)
        for read in self._reads:
            if not read.state.terminal:
                read.fail(error)
        self._reads.clear()
        self._peers.clear()
        self._leaving.clear()
        self._agent.close()

    def _require_open(self) -> None:
        if self._closed:
            raise LocalProtocolError(f"transport {self.name}: it is closed; make a new one")

    def _own_landing(self) -> Landing:
        if self._landing is None:
            self._landing = Landing()
            self._agent.register_own(self._landing.memory)
        return self._landing

    def _staged_source(self, data: AgentData) -> StagedSource | None:
        """The peer's ring, if it has one, mapped where that can be, or read where there is room for its status."""
        if data.ring is None:
            return None
        ring = map_ring(data.ring, data.process, data.probe) if self._same_host else None
        if ring is not None:
            return MappedSource(data.name, data.ring, ring, self._agent, self._drop_peer)
        landing = self._own_landing()
        if not landing.free_status:
            return None
        return ReadSource(data.name, data.ring, landing, self._agent, self._drop_peer)

    def _add_agent(self, data: AgentData) -> TransportError | None:
        """Makes the peer known to NIXL; the error when the peer is dead. Raises when its data is at fault."""
        try:
            name = self._agent.add(data.name, data.payload)
        except TransportError as error:
            if error.kind is TransportErrorKind.REJECTED:
                raise
            return TransportError(TransportErrorKind.PEER_LOST, f"peer {data.name}: it cannot be reached: {error}")
        if name != data.name:
            self._agent.remove(name)
            raise TransportError(
                TransportErrorKind.REJECTED,
                f"agent data: it names {data.name!r} and NIXL's part {name!r}; they must agree",
            )
        return None

    def _start(self, read: PiecewiseRead) -> ReadHandle:
        read.begin(self._clock(), self._reads)
        read.end_if_over()
        if not read.state.terminal:
            self._reads.append(read)
        return read

    def _collect(self, read: PiecewiseRead) -> None:
        """Takes away the pieces that have ended."""
        still_posted = []
        for piece in read.posted:
            if self._is_over(read, piece):
                self._agent.release(piece)
            else:
                still_posted.append(piece)
        read.posted = still_posted
        if isinstance(read, ProbeRead) and not read.posted and not read.waiting:
            self._judge(read)
        read.end_if_over()

    def _is_over(self, read: PiecewiseRead, piece: Any) -> bool:
        """Whether the piece has ended; dooms its read when it ended badly."""
        try:
            return self._agent.is_over(piece)
        except TransportError as error:
            self._met(read, error)
            return True

    def _judge(self, probe: ProbeRead) -> None:
        """Lets the peer's other reads begin, or dooms them all, by what the probe brought; then measures the peer."""
        peer = self._peers.get(probe.peer)
        if probe.state is not ReadState.IN_PROGRESS or peer is None:
            return
        error = None if probe.proven else probe.wrong_bytes()
        if error is not None:
            self._drop_peer(probe.peer, error)
            return
        if self._same_host and not peer.proven:
            self._agent.meet(peer.neighbour)
        peer.proven = probe.proven = True
        probe.next_trial(self._clock())
        if probe.trials is not None and not probe.waiting and peer.staged is not None:
            staged, helpers = peer.staged, self._agent.helpers(probe.peer)
            costs = (probe.trials.cost(), *copies_of_our_own(self._clock))
            peer.choice = Choice(Rates.of(*costs, staged.slot_bytes, staged.mapped, helpers))

    def _post_batch(self) -> bool:
        """Prepares some pieces, then posts them one right after the other: a copy drives everything else out of the
        processor's caches, so what is done between two of them costs a multiple. Whether there were any.
        """
        batch = list(self._prepare_batch())
        for read, piece in batch:
            self._post(read, piece)
        for read in dict.fromkeys(read for read, _ in batch):
            self._collect(read)
        return bool(batch)

    def _prepare_batch(self) -> Iterator[tuple[PiecewiseRead, Any]]:
        """Pieces of one read after the other that may post, as far as they fit into a batch; these reads are then
        last.
        """
        nbytes, num_rows, passed = 0, 0, 0
        while passed < len(self._reads):
            read = self._reads[0]
            passed += 1
            if self._may_post(read):
                rows = read.waiting[0]
                nbytes, num_rows = nbytes + rows.total_bytes, num_rows + len(rows)
                if num_rows > len(rows) and (nbytes > MOST_BATCH_BYTES or num_rows > MOST_BATCH_ROWS):
                    return
                piece = self._prepare(read, read.waiting.popleft())
                if piece is not None:
                    read.posted.append(piece)
                    yield read, piece
                passed = 0
            self._reads.rotate(-1)

    def _may_post(self, read: PiecewiseRead) -> bool:
        if not read.waiting or len(read.posted) >= MOST_POSTED_PIECES:
            return False
        return isinstance(read, ProbeRead) or self._peers[read.peer].proven

    def _prepare(self, read: PiecewiseRead, rows: ReadRows) -> Any:
        """A piece that can be posted; None when its read is doomed."""
        try:
            return self._agent.prepare(read.peer, rows)
        except TransportError as error:
            self._met(read, error)
            return None

    def _post(self, read: PiecewiseRead, piece: Any) -> None:
        """Posts a prepared piece; one of a read that was doomed meanwhile is given up."""
        if read.state is not ReadState.IN_PROGRESS:
            read.posted.remove(piece)
            self._agent.release(piece)
            return
        if isinstance(read, ProbeRead):
            read.posted_at = self._clock()
        try:
            self._agent.start(piece)
        except TransportError as error:
            self._met(read, error)

    def _met(self, read: PiecewiseRead, error: TransportError) -> None:
        """Dooms a read that met an error, and with a lost peer all its reads."""
        if error.kind is TransportErrorKind.PEER_LOST:
            self._drop_peer(read.peer, error)
        read.cancel(error)

    def _drop_peer(self, peer: str, error: TransportError) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            self._leaving[peer] = known
            known.leave()
        for read in self._reads:
            if read.peer == peer:
                read.cancel(error)

    def _let_go(self) -> None:
        """Removes the peers that are leaving and of which nothing is under way any more."""
        for name, peer in tuple(self._leaving.items()):
            if any(read.posted for read in self._reads if read.peer == name):
                continue
            if not peer.settled():
                continue
            peer.end()
            del self._leaving[name]
            self._agent.remove(name)
