"""The NIXL transport: real reads over UCX (RDMA, shared memory, TCP). The only home of the package ``nixl``.

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
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

# Both log to stdout unless told otherwise, where programs expect our own output.
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "error")
os.environ.setdefault("UCX_LOG_FILE", "stderr")

from nixl import _bindings as bindings
from nixl._api import nixl_agent, nixl_agent_config

from kvweave.errors import LocalProtocolError, TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES, AgentData
from kvweave.transport.base import MemoryRegion, ReadHandle, ReadRows, ReadState, failed_read, peer_lost
from kvweave.transport.piecewise import MOST_POST_BYTES, MOST_POST_ROWS, PiecewiseRead, ProbeRead
from kvweave.transport.regions import MEMORY_KINDS, RegionTable, outside_error
from kvweave.transport.rows import UInt64Array, single

MOST_POSTED_PIECES = 5
MOST_BATCH_BYTES = 4 * MOST_POST_BYTES + MOST_POST_BYTES // 2
MOST_BATCH_ROWS = 2 * MOST_POST_ROWS
ROUND_BATCHES = 2
"""A batch is prepared together and then posted, which takes some milliseconds: a few full posts, and what is left over
of a read behind its last one. One ``progress()`` posts two batches. What else a round of the polling thread does takes
half a millisecond, and must be a small part of a large read."""
PROBE_SLOTS = 4_096

_KINDS: dict[type[Exception], TransportErrorKind] = {
    bindings.nixlRemoteDisconnectError: TransportErrorKind.PEER_LOST,
    bindings.nixlNotFoundError: TransportErrorKind.PEER_LOST,
    bindings.nixlCancelledError: TransportErrorKind.CANCELLED,
    bindings.nixlInvalidParamError: TransportErrorKind.REJECTED,
    bindings.nixlMismatchError: TransportErrorKind.REJECTED,
    bindings.nixlNotAllowedError: TransportErrorKind.REJECTED,
    bindings.nixlNotSupportedError: TransportErrorKind.REJECTED,
    bindings.nixlBackendError: TransportErrorKind.UNAVAILABLE,
    bindings.nixlNotPostedError: TransportErrorKind.UNAVAILABLE,
    bindings.nixlRepostActiveError: TransportErrorKind.UNAVAILABLE,
    bindings.nixlUnknownError: TransportErrorKind.UNAVAILABLE,
}


_FOREIGN = tuple(_KINDS)


@contextmanager
def _foreign_errors(doing: str) -> Iterator[None]:
    """NIXL's errors become ours; what is called all the time does the same by hand."""
    try:
        yield
    except _FOREIGN as error:
        raise _ours(doing, error) from error


def _ours(doing: str, error: Exception) -> TransportError:
    return TransportError(_KINDS[type(error)], f"nixl: {doing}: {error}")


@dataclass(slots=True)
class _Peer:
    data: bytes
    regions: RegionTable
    proven: bool = False


class NixlTransport:
    """A ``Transport`` over NIXL. ``name`` must be unique among all engines, and new with every restart."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._regions = RegionTable()
        self._registrations: list[Any] = []
        self._peers: dict[str, _Peer] = {}
        self._leaving: set[str] = set()
        self._reads: deque[PiecewiseRead] = deque()
        self._connections = 0
        self._closed = False
        self._probe = np.frombuffer(bytearray(secrets.token_bytes(PROBE_BYTES)), np.uint8)
        self._landings = np.zeros((PROBE_SLOTS, PROBE_BYTES), np.uint8)
        with _foreign_errors("creating the agent"):
            self._agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        for own in (self._probe, self._landings):
            self._register_rows("DRAM", _triples(single(own.ctypes.data), single(own.nbytes), 0))

    def register(self, regions: Sequence[MemoryRegion]) -> None:
        """See ``Transport``."""
        self._require_open()
        table = self._regions.with_regions(regions)
        added = table.records[len(self._regions) :]
        for kind, memory in enumerate(MEMORY_KINDS):
            chosen = added[added["memory"] == kind]
            if len(chosen):
                self._register_rows(memory, _triples(chosen["address"], chosen["nbytes"], chosen["device"]))
        self._regions = table

    def agent_data(self) -> bytes:
        """See ``Transport``."""
        self._require_open()
        with _foreign_errors("describing the agent"):
            payload = self._agent.get_agent_metadata()
        return AgentData(self.name, self._regions, self._probe.ctypes.data, self._probe.tobytes(), payload).encode()

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
            self._peers[data.name] = _Peer(agent_data, data.regions)
        landing = self._landings[self._connections % PROBE_SLOTS]
        self._connections += 1
        landing[:] = 0
        return self._start(ProbeRead(data.name, data.probe_address, landing, data.probe))

    def read(self, peer: str, rows: ReadRows) -> ReadHandle:
        """See ``Transport``. Only checks and cuts the rows: bytes move in ``progress``."""
        self._require_open()
        source = self._peers.get(peer)
        error = outside_error(rows, source.regions, self._regions) if source else peer_lost(peer)
        return failed_read(peer, error) if error else self._start(PiecewiseRead(peer, rows))

    def cancel(self, handle: ReadHandle) -> None:
        """See ``Transport``."""
        handle.cancel(TransportError(TransportErrorKind.CANCELLED, f"read from {handle.peer}: cancelled by its caller"))

    def progress(self) -> int:
        """See ``Transport``. Takes about as long as copying ``ROUND_BATCHES`` batches."""
        if self._closed:
            return 0
        try:
            self._agent.get_new_notifs()
        except _FOREIGN as error:
            raise _ours("making progress", error) from error
        for read in tuple(self._reads):
            self._collect(read)
        for _ in range(ROUND_BATCHES):
            self._post_batch()
        self._reads = deque(read for read in self._reads if not read.state.terminal)
        self._let_go()
        return len(self._reads)

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
        error = TransportError(TransportErrorKind.UNAVAILABLE, f"transport {self.name}: it was closed")
        for read in self._reads:
            if not read.state.terminal:
                read.fail(error)
            for piece in read.posted:
                self._release(piece)
        self._reads.clear()
        for peer in (*self._peers, *self._leaving):
            self._remove_agent(peer)
        self._peers.clear()
        self._leaving.clear()
        for registration in self._registrations:
            with suppress(TransportError), _foreign_errors("deregistering memory"):
                self._agent.deregister_memory(registration)
        self._registrations.clear()
        del self._agent

    def _require_open(self) -> None:
        if self._closed:
            raise LocalProtocolError(f"transport {self.name}: it is closed; make a new one")

    def _register_rows(self, memory: str, triples: UInt64Array) -> None:
        with _foreign_errors(f"registering {len(triples)} regions of {memory}"):
            self._registrations.append(self._agent.register_memory(triples, memory))

    def _add_agent(self, data: AgentData) -> TransportError | None:
        """Makes the peer known to NIXL; the error when the peer is dead. Raises when its data is at fault."""
        try:
            with _foreign_errors(f"adding peer {data.name}"):
                name = self._agent.add_remote_agent(data.payload).decode()
        except TransportError as error:
            if error.kind is TransportErrorKind.REJECTED:
                raise
            return TransportError(TransportErrorKind.PEER_LOST, f"peer {data.name}: it cannot be reached: {error}")
        if name != data.name:
            self._remove_agent(name)
            raise TransportError(
                TransportErrorKind.REJECTED,
                f"agent data: it names {data.name!r} and NIXL's part {name!r}; they must agree",
            )
        return None

    def _remove_agent(self, peer: str) -> None:
        """Forgets a peer; NIXL may have forgotten it already, when it found it dead."""
        with suppress(TransportError), _foreign_errors(f"removing peer {peer}"):
            self._agent.remove_remote_agent(peer)

    def _start(self, read: PiecewiseRead) -> ReadHandle:
        read.end_if_over()
        if not read.state.terminal:
            self._reads.append(read)
        return read

    def _collect(self, read: PiecewiseRead) -> None:
        """Takes away the pieces that have ended."""
        still_posted = []
        for piece in read.posted:
            if self._is_over(read, piece):
                self._release(piece)
            else:
                still_posted.append(piece)
        read.posted = still_posted
        if isinstance(read, ProbeRead) and not read.posted and not read.waiting:
            self._judge(read)
        read.end_if_over()

    def _is_over(self, read: PiecewiseRead, piece: Any) -> bool:
        """Whether the piece has ended; dooms its read when it ended badly."""
        try:
            state = self._agent.check_xfer_state(piece)
        except _FOREIGN as error:
            self._met(read, _ours(f"reading from {read.peer}", error))
            return True
        if state == "ERR":
            self._met(
                read, TransportError(TransportErrorKind.UNAVAILABLE, f"nixl: reading from {read.peer}: it failed")
            )
        return bool(state != "PROC")

    def _judge(self, probe: ProbeRead) -> None:
        """Lets the peer's other reads begin, or dooms them all, by what the probe brought."""
        peer = self._peers.get(probe.peer)
        if probe.state is not ReadState.IN_PROGRESS or peer is None:
            return
        error = probe.wrong_bytes()
        if error is None:
            peer.proven = True
        else:
            self._drop_peer(probe.peer, error)

    def _post_batch(self) -> None:
        """Prepares some pieces, then posts them one right after the other: a copy drives everything else out of the
        processor's caches, so what is done between two of them costs a multiple.
        """
        batch = list(self._prepare_batch())
        for read, piece in batch:
            self._post(read, piece)
        for read in dict.fromkeys(read for read, _ in batch):
            self._collect(read)

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
        target = _triples(rows.target_address, rows.nbytes, rows.target_device)
        source = _triples(rows.source_address, rows.nbytes, rows.source_device)
        try:
            return self._agent.initialize_xfer(
                "READ",
                self._agent.get_xfer_descs(target, rows.target_memory),
                self._agent.get_xfer_descs(source, rows.source_memory),
                read.peer,
            )
        except _FOREIGN as error:
            self._met(read, _ours(f"reading from {read.peer}", error))
            return None

    def _post(self, read: PiecewiseRead, piece: Any) -> None:
        """Posts a prepared piece; one of a read that was doomed meanwhile is given up."""
        if read.state is not ReadState.IN_PROGRESS:
            read.posted.remove(piece)
            self._release(piece)
            return
        try:
            self._agent.transfer(piece)
        except _FOREIGN as error:
            self._met(read, _ours(f"reading from {read.peer}", error))

    def _met(self, read: PiecewiseRead, error: TransportError) -> None:
        """Dooms a read that met an error, and with a lost peer all its reads."""
        if error.kind is TransportErrorKind.PEER_LOST:
            self._drop_peer(read.peer, error)
        read.cancel(error)

    def _drop_peer(self, peer: str, error: TransportError) -> None:
        if self._peers.pop(peer, None) is not None:
            self._leaving.add(peer)
        for read in self._reads:
            if read.peer == peer:
                read.cancel(error)

    def _let_go(self) -> None:
        """Removes the peers that are leaving and of which nothing is under way any more."""
        for peer in tuple(self._leaving):
            if not any(read.posted for read in self._reads if read.peer == peer):
                self._leaving.discard(peer)
                self._remove_agent(peer)

    def _release(self, piece: Any) -> None:
        with suppress(*_FOREIGN):
            self._agent.release_xfer_handle(piece)


def _triples(address: UInt64Array, nbytes: UInt64Array, device: int | UInt64Array) -> UInt64Array:
    """NIXL's form of descriptors: a row of address, length and device each."""
    triples = np.empty((len(address), 3), np.uint64)
    triples[:, 0], triples[:, 1], triples[:, 2] = address, nbytes, device
    return triples
