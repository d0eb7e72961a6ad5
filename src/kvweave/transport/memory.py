"""The memory transport: moves real bytes between numpy memory of one process, and acts out faults on request.

A ``MemoryNetwork`` joins transports. A read copies in equal parts over its delay, so a source block that is written
meanwhile arrives torn, as it would over a wire. Connecting needs the peer's ``progress()``, as over UCX. Everything is
counted in ``progress()`` calls and decided by the reader's fault source, so a run repeats exactly.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from kvweave.errors import LocalProtocolError, TransportError, TransportErrorKind
from kvweave.transport.agent_data import AgentData
from kvweave.transport.base import MemoryRegion, ReadHandle, ReadRows, ReadState, failed_read, peer_lost
from kvweave.transport.faults import Fault, FaultSource, no_faults
from kvweave.transport.regions import RegionTable, outside_error


class MemoryNetwork:
    """Where memory transports find one another. Transports of one network may run in different threads."""

    def __init__(self) -> None:
        self._transports: dict[bytes, MemoryTransport] = {}
        self._tokens = itertools.count(1)
        self.lock = threading.Lock()

    def join(self, name: str, faults: FaultSource = no_faults) -> MemoryTransport:
        """A new transport; ``faults`` is asked for the fault of each of its reads."""
        token = next(self._tokens).to_bytes(8, "little")
        transport = self._transports[token] = MemoryTransport(self, name, token, faults)
        return transport

    def find(self, token: bytes) -> MemoryTransport | None:
        """The living transport with that token."""
        return self._transports.get(token)

    def kill(self, transport: MemoryTransport) -> None:
        """Lets a transport die as a killed process would: nothing of it can be read any more, nothing is said."""
        self._transports.pop(transport.token, None)


class _Work(ReadHandle):
    """A read or a connection under way; ``steps`` counts the ``progress()`` calls that it has seen."""

    __slots__ = ("copied", "fault", "rows", "source", "steps", "warm_at")

    def __init__(self, peer: str, source: _Peer, rows: ReadRows | None, fault: Fault) -> None:
        super().__init__(peer)
        self.source = source
        self.rows = rows
        self.fault = fault
        self.steps = 0
        self.copied = 0
        self.warm_at = source.transport.progress_calls + 1


@dataclass(frozen=True, slots=True)
class _Peer:
    data: bytes
    transport: MemoryTransport
    regions: RegionTable


@dataclass(slots=True)
class _LateWrite:
    rows: ReadRows
    source: _Peer
    remaining: int


class MemoryTransport:
    """A ``Transport`` over the memory of this process, made by ``MemoryNetwork.join``."""

    def __init__(self, network: MemoryNetwork, name: str, token: bytes, faults: FaultSource) -> None:
        self.name = name
        self.token = token
        self.progress_calls = 0
        self._network = network
        self._faults = faults
        self._regions = RegionTable()
        self._peers: dict[str, _Peer] = {}
        self._work: list[_Work] = []
        self._late_writes: list[_LateWrite] = []
        self._closed = False

    def register(self, regions: Sequence[MemoryRegion]) -> None:
        """See ``Transport``; memory of every kind is ordinary memory here."""
        self._require_open()
        self._regions = self._regions.with_regions(regions)

    def agent_data(self) -> bytes:
        """See ``Transport``."""
        self._require_open()
        return AgentData(self.name, self._regions, 0, 0, bytes(16), self.token).encode()

    def connect(self, agent_data: bytes) -> ReadHandle:
        """See ``Transport``."""
        self._require_open()
        data = AgentData.decode(agent_data)
        known = self._peers.get(data.name)
        if data.name == self.name or (known and known.data != agent_data):
            raise TransportError(
                TransportErrorKind.REJECTED, f"agent data: the name {data.name!r} is in use; disconnect that peer first"
            )
        transport = self._network.find(data.payload)
        if transport is None:
            return failed_read(data.name, peer_lost(data.name))
        peer = known or _Peer(agent_data, transport, data.regions)
        self._peers[data.name] = peer
        return self._start(_Work(data.name, peer, None, Fault()))

    def read(self, peer: str, rows: ReadRows, attended: bool = True) -> ReadHandle:
        """See ``Transport``."""
        self._require_open()
        source = self._peers.get(peer)
        if source is None:
            return failed_read(peer, peer_lost(peer))
        error = outside_error(rows, source.regions, self._regions)
        if error is not None:
            return failed_read(peer, error)
        work = _Work(peer, source, rows, self._faults() if len(rows) else Fault())
        if len(rows) == 0:
            work.complete()
            return work
        return self._start(work)

    def cancel(self, handle: ReadHandle) -> None:
        """See ``Transport``."""
        handle.cancel(TransportError(TransportErrorKind.CANCELLED, f"read from {handle.peer}: cancelled by its caller"))

    def progress(self) -> int:
        """See ``Transport``."""
        if self._closed:
            return 0
        self.progress_calls += 1
        with self._network.lock:
            self._write_late()
            for work in self._work:
                self._advance(work)
        self._work = [work for work in self._work if not work.state.terminal]
        return len(self._work)

    def disconnect(self, peer: str) -> None:
        """See ``Transport``."""
        if self._peers.pop(peer, None) is None:
            return
        for work in self._work:
            if work.peer == peer:
                work.cancel(peer_lost(peer))

    def close(self) -> None:
        """See ``Transport``."""
        self._network.kill(self)
        closed = TransportError(TransportErrorKind.UNAVAILABLE, f"transport {self.name}: it was closed")
        for work in self._work:
            work.fail(closed)
        self._work, self._late_writes, self._peers = [], [], {}
        self._regions, self._closed = RegionTable(), True

    def _require_open(self) -> None:
        if self._closed:
            raise LocalProtocolError(f"transport {self.name}: it is closed; make a new one")

    def _start(self, work: _Work) -> ReadHandle:
        self._work.append(work)
        return work

    def _advance(self, work: _Work) -> None:
        """One step of a read: dies with its peer, waits, copies its next part, ends."""
        work.steps += 1
        if self._network.find(work.source.transport.token) is None:
            self._peers.pop(work.peer, None)
            work.fail(peer_lost(work.peer))
        elif work.rows is None:
            self._advance_connection(work)
        elif work.fault.dropped:
            if work.state is ReadState.CANCELLING:
                work.complete()
        else:
            self._advance_copy(work, work.rows)

    def _advance_connection(self, work: _Work) -> None:
        if work.state is ReadState.CANCELLING or work.source.transport.progress_calls >= work.warm_at:
            work.complete()

    def _advance_copy(self, work: _Work, rows: ReadRows) -> None:
        fault = work.fault
        wanted = int(len(rows) * fault.copied) * work.steps // (fault.delay + 1)
        _copy(rows, work.copied, wanted, reversed_rows=fault.reversed_rows)
        work.copied = wanted
        if work.steps <= fault.delay:
            return
        if fault.late_write is not None:
            self._late_writes.append(_LateWrite(rows, work.source, fault.late_write))
        if fault.error is None:
            work.complete()
        else:
            work.fail(TransportError(fault.error, f"read from {work.peer}: failed on request"))

    def _write_late(self) -> None:
        for write in self._late_writes:
            write.remaining -= 1
            if write.remaining < 0 and self._network.find(write.source.transport.token):
                _copy(write.rows, 0, len(write.rows), reversed_rows=False)
        self._late_writes = [write for write in self._late_writes if write.remaining >= 0]


def _copy(rows: ReadRows, start: int, stop: int, *, reversed_rows: bool) -> None:
    order = range(start, stop) if not reversed_rows else range(len(rows) - 1 - start, len(rows) - 1 - stop, -1)
    for row in order:
        ctypes.memmove(int(rows.target_address[row]), int(rows.source_address[row]), int(rows.nbytes[row]))
