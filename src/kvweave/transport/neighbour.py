"""A peer's process on this machine, whose memory the system copies for us (``process_vm_readv``, Linux).

UCX reads over shared memory with the same call, one for each piece, and most of what a small piece costs is the call.
Here many pieces go in one. The last piece of each call is the peer's probe, so a call that brings it has read from the
process that the agent data came from, whoever has its number meanwhile: the system looks the process up once per call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES
from kvweave.transport.rows import ReadRows, UInt64Array

MOST_RANGES = 1_023
"""What the system takes in one call, but for the probe."""

RangeArray = npt.NDArray[np.uint64]

_NONE = np.zeros(0, np.uint64)
NO_ROWS = ReadRows(_NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True, eq=False)
class Stroke:
    """Pieces that go in one call, as the system takes them: address and length each, the probe last on both sides."""

    source: RangeArray
    target: RangeArray
    nbytes: int
    landing: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Process number ``pid`` of this machine, whose transport has these bytes at its probe address."""

    name: str
    pid: int
    probe_address: int
    probe: bytes

    @property
    def reachable(self) -> bool:
        """Whether the system lets us read there, and the peer is what is read."""
        return bool(_CALL) and 0 < self.pid < 2**31 and self._problem(self.stroke(NO_ROWS)) is None

    def stroke(self, rows: ReadRows) -> Stroke:
        """At most ``MOST_RANGES`` rows, to be copied as often as wanted."""
        landing = np.zeros(PROBE_BYTES, np.uint8)
        source = _ranges(rows.source_address, rows.nbytes, self.probe_address)
        target = _ranges(rows.target_address, rows.nbytes, landing.ctypes.data)
        return Stroke(source, target, rows.total_bytes + PROBE_BYTES, landing)

    def copy(self, stroke: Stroke) -> None:
        """Copies into our memory; other threads run meanwhile.

        Raises ``TransportError``: PEER_LOST when the process or its transport is gone, or may be read no more,
        UNAVAILABLE when it is there and the system does not copy all of it.
        """
        problem = self._problem(stroke)
        if problem is not None:
            kind = TransportErrorKind.UNAVAILABLE if self.reachable else TransportErrorKind.PEER_LOST
            raise TransportError(kind, f"peer {self.name}: {problem}")

    def _problem(self, stroke: Stroke) -> str | None:
        """What was wrong when it was copied, if anything was."""
        source, target = stroke.source, stroke.target
        stroke.landing[:] = 0
        copied = _CALL[0](self.pid, target.ctypes.data, len(target), source.ctypes.data, len(source), 0)
        if copied < 0:
            return f"the system does not copy from process {self.pid}: {os.strerror(ctypes.get_errno())}"
        if copied != stroke.nbytes:
            return f"{copied} of {stroke.nbytes} bytes could be copied from process {self.pid}"
        if stroke.landing.tobytes() != self.probe:
            return f"process {self.pid} is another one now, or has closed its transport"
        return None


def _ranges(address: UInt64Array, nbytes: UInt64Array, probe_address: int) -> RangeArray:
    ranges = np.empty((len(nbytes) + 1, 2), np.uint64)
    ranges[:-1, 0], ranges[:-1, 1] = address, nbytes
    ranges[-1] = probe_address, PROBE_BYTES
    return ranges


def _system_call() -> tuple[Callable[..., int], ...]:
    """The call; nothing where the system has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (AttributeError, OSError, TypeError):
        return ()
    call.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    call.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return (call,)


_CALL = _system_call()
