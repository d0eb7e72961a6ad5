"""The message with which a reader asks a source to gather pieces, and gives back what it has read.

Little endian::

    "kvg3" | tickets given back, runs, pieces, bytes of a piece, pieces of a slot (u32 each) | ticket (u64)
           | tickets given back (u64 each) | addresses of runs (u64) | their strides (u32) | their pieces (u32)

A run is some pieces ``stride`` bytes apart, so a block whose tokens are cut by a head split is one run; where there are
as many pieces as runs, strides and pieces are left out. All pieces of a request have one size. They fill one slot after
another; the first is asked for under this ticket, the others under those that follow. A ticket is a random number that
is used once; 0 asks for nothing. What everybody may see of it is ``shown``, and nobody can ask under what he saw.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvweave.errors import RemoteProtocolError
from kvweave.transport.pieces import Pieces
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import UInt64Array

UInt32Array = npt.NDArray[np.uint32]

MOST_PIECES = 8_192
"""Of one slot."""
MOST_RUNS = 8_192
"""Of one request."""
MOST_SLOTS = 8
MOST_GIVEN_BACK = 64

_MAGIC = b"kvg3"
_HEAD = struct.Struct("<4sIIIIIQ")
_NONE = np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Pieces of one size: of each run the first address, the distance of its pieces, and how many it has.

    Strides and counts are empty where every run is one piece.
    """

    address: UInt64Array
    stride: UInt32Array
    count: UInt32Array

    @staticmethod
    def joined(several: Sequence[Runs]) -> Runs:
        """All of them, in their order."""
        if len(several) == 1:
            return several[0]
        address = np.concatenate([runs.address for runs in several])
        if not any(len(runs.count) for runs in several):
            return Runs(address, _NONE, _NONE)
        stride = [runs.stride if len(runs.count) else np.zeros(len(runs.address), np.uint32) for runs in several]
        count = [runs.count if len(runs.count) else np.ones(len(runs.address), np.uint32) for runs in several]
        return Runs(address, np.concatenate(stride), np.concatenate(count))

    @property
    def pieces(self) -> int:
        """How many pieces there are. Counts of a peer may be anything: their sum is exact all the same."""
        return int(self.count.sum(dtype=np.uint64)) if len(self.count) else len(self.address)

    def addresses(self) -> UInt64Array:
        """Of every piece, in their order."""
        if not len(self.count):
            return self.address
        stride = self.stride.astype(np.uint64)
        if (self.count == self.count[0]).all():
            steps = np.arange(int(self.count[0]), dtype=np.uint64)
            return (self.address[:, None] + stride[:, None] * steps).ravel()
        run = np.repeat(np.arange(len(self.count)), self.count)
        number = np.arange(len(run)) - (np.cumsum(self.count, dtype=np.int64) - self.count)[run]
        return self.address[run] + number.astype(np.uint64) * stride[run]

    def spans(self, piece_bytes: int) -> UInt64Array:
        """Bytes from the begin of each run's first piece to the end of its last one."""
        if not len(self.count):
            return np.full(len(self.address), piece_bytes, np.uint64)
        return (self.count - np.uint32(1)) * self.stride.astype(np.uint64) + np.uint64(piece_bytes)


NO_RUNS = Runs(np.zeros(0, np.uint64), _NONE, _NONE)


@dataclass(frozen=True, slots=True, eq=False)
class GatherRequest:
    """What is asked for under ``ticket`` and those that follow it, pieces of ``piece_bytes``, as many in each slot, and
    the tickets whose slots may be used again.
    """

    ticket: int
    piece_bytes: int
    runs: Runs
    given_back: tuple[int, ...] = ()
    slot_pieces: int = MOST_PIECES

    @property
    def tickets(self) -> range:
        """One for each slot, and one where nothing is asked for under it; none where it is 0."""
        num_slots = max(1, -(-self.runs.pieces // self.slot_pieces))
        return range(self.ticket, self.ticket + num_slots) if self.ticket else range(0)

    def encode(self) -> bytes:
        """The message."""
        runs, given_back = self.runs, self.given_back
        head = _HEAD.pack(
            _MAGIC, len(given_back), len(runs.address), runs.pieces, self.piece_bytes, self.slot_pieces, self.ticket
        )
        tickets = struct.pack(f"<{len(given_back)}Q", *given_back)
        return b"".join((head, tickets, runs.address.tobytes(), runs.stride.tobytes(), runs.count.tobytes()))

    @staticmethod
    def decode(message: bytes) -> GatherRequest:
        """The request of a message; raises ``RemoteProtocolError`` when it is malformed or too large."""
        if len(message) < _HEAD.size or not message.startswith(_MAGIC):
            raise RemoteProtocolError(f"gather request: {len(message)} bytes starting with {message[:8]!r} are none")
        _, given_back, runs, pieces, piece_bytes, slot_pieces, ticket = _HEAD.unpack_from(message)
        if given_back > MOST_GIVEN_BACK or runs > MOST_RUNS or not 0 < slot_pieces <= MOST_PIECES:
            raise RemoteProtocolError(
                f"gather request: {given_back} tickets, {runs} runs and {slot_pieces} pieces of a slot; at most "
                f"{MOST_GIVEN_BACK} tickets, {MOST_RUNS} runs and {MOST_PIECES} pieces of a slot can be"
            )
        if not runs <= pieces <= MOST_SLOTS * slot_pieces or ticket > 2**64 - MOST_SLOTS:
            raise RemoteProtocolError(
                f"gather request: {pieces} pieces in {runs} runs under ticket {ticket}; at most {MOST_SLOTS} slots of "
                f"{slot_pieces} pieces can be, and no run is empty"
            )
        several = runs if pieces > runs else 0
        if len(message) != _HEAD.size + 8 * (given_back + runs + several):
            raise RemoteProtocolError(f"gather request: {len(message)} bytes do not hold {runs} runs")
        tickets = struct.unpack_from(f"<{given_back}Q", message, _HEAD.size)
        place = _HEAD.size + 8 * given_back
        found = Runs(
            np.frombuffer(message, "<u8", runs, place),
            np.frombuffer(message, "<u4", several, place + 8 * runs),
            np.frombuffer(message, "<u4", several, place + 8 * runs + 4 * several),
        )
        if found.pieces != pieces or not found.count.all():
            raise RemoteProtocolError(f"gather request: its runs have {found.pieces} pieces, its head says {pieces}")
        return GatherRequest(ticket, piece_bytes, found, tickets, slot_pieces)

    def slots(self, regions: RegionTable, most_bytes: int) -> list[Pieces]:
        """The pieces that are asked for, those of each slot together.

        Raises ``RemoteProtocolError`` when there are none, when they are empty or more than ``most_bytes`` a slot, or
        when one does not lie inside a region of main memory.
        """
        count = self.runs.pieces
        nbytes = min(count, self.slot_pieces) * self.piece_bytes
        if not 0 < nbytes <= most_bytes:
            raise RemoteProtocolError(
                f"gather request: {count} pieces of {self.piece_bytes} bytes, {self.slot_pieces} a slot; 1 to "
                f"{most_bytes} bytes are gathered at once"
            )
        address = self.runs.addresses()
        whole = _inside(regions, self.runs.address, self.runs.spans(self.piece_bytes))
        if not whole and not _inside(regions, address, np.full(len(address), self.piece_bytes, np.uint64)):
            raise RemoteProtocolError("gather request: a piece is not inside one registered region of main memory")
        pieces = Pieces(address, self.piece_bytes)
        starts = range(0, count, self.slot_pieces)
        return [pieces.take(start, min(start + self.slot_pieces, count)) for start in starts]


def shown(ticket: int) -> int:
    """What the source shows of a ticket, which only its reader knows; never 0."""
    digest = hashlib.blake2b(ticket.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def _inside(regions: RegionTable, address: UInt64Array, nbytes: UInt64Array) -> bool:
    return not (address + nbytes < address).any() and regions.first_outside("DRAM", 0, address, nbytes) is None


def runs_of(address: UInt64Array, starts: Sequence[int]) -> Iterator[Runs]:
    """Pieces of one size as runs, in their order, together from each of ``starts`` to the next; the first start is 0.

    Three pieces or more at one distance become one run.

    >>> [found] = runs_of(np.array([0, 64, 128, 7], np.uint64), [0])
    >>> found.address.tolist(), found.stride.tolist(), found.count.tolist()
    ([0, 7], [64, 0], [3, 1])
    """
    continues = _continued(address)
    if not continues.any():
        ends = [*starts[1:], len(address)]
        yield from (Runs(address[start:end], _NONE, _NONE) for start, end in zip(starts, ends, strict=True))
        return
    continues[list(starts)] = False
    first = np.flatnonzero(~continues)
    count = np.diff(first, append=len(address)).astype(np.uint32)
    several = count > 1
    stride = np.zeros(len(first), np.uint32)
    stride[several] = address[first[several] + 1] - address[first[several]]
    cuts = [*np.searchsorted(first, starts).tolist(), len(first)]
    for a, b in zip(cuts[:-1], cuts[1:], strict=True):
        yield _some(address[first[a:b]], stride[a:b], count[a:b])


def _some(address: UInt64Array, stride: UInt32Array, count: UInt32Array) -> Runs:
    return Runs(address, stride, count) if count.max() > 1 else Runs(address, _NONE, _NONE)


def _continued(address: UInt64Array) -> npt.NDArray[np.bool_]:
    """Which pieces belong to the run of the piece before them.

    Between two pieces lies a step. Steps alike one behind the other make a run of their pieces, where there are two or
    more of them; the first step after such a run is not part of the next one, because its piece is taken. A step that
    goes back, or over 4 GB, makes none.
    """
    continues = np.zeros(len(address), np.bool_)
    step = address[1:] - address[:-1]
    alike = (step[1:] == step[:-1]) & (step[1:] < np.uint64(2**32))
    if not alike.any():
        return continues
    long = np.zeros(len(step), np.bool_)
    long[1:] |= alike
    long[:-1] |= alike
    starts = long.copy()
    starts[1:] &= ~alike
    shared = starts.copy()
    shared[0] = False
    shared[1:] &= long[:-1]
    continues[1:] = long & ~shared
    return continues
