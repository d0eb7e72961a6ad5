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
from dataclasses import dataclass

import numpy as np

from kvweave.errors import RemoteProtocolError
from kvweave.transport.pieces import Pieces
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import UInt64Array
from kvweave.transport.runs import Runs

MOST_PIECES = 8_192
"""Of one slot."""
MOST_RUNS = 8_192
"""Of one request."""
MOST_SLOTS = 8
MOST_GIVEN_BACK = 64

_MAGIC = b"kvg3"
_HEAD = struct.Struct("<4sIIIIIQ")


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
        if _inside(regions, self.runs.address, self.runs.spans(self.piece_bytes)):
            pieces = self.runs.at_places(self.piece_bytes)
        else:
            address = self.runs.addresses()
            if not _inside(regions, address, np.full(len(address), self.piece_bytes, np.uint64)):
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
