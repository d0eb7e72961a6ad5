"""The message with which a reader asks a source to gather pieces, and gives back what it has read.

Little endian::

    "kvg4" | tickets given back, repeats, runs, pieces of all runs, bytes of a piece (u32 each)
           | pieces of the first slot, of each other slot (u32 each) | ticket, first piece, pieces (u64 each)
           | tickets given back (u64 each) | where it is repeated (u64 each)
           | addresses of runs (u64) | their strides (u32) | their pieces (u32)

Where layers are read alike, the pieces of one layer are a pattern: runs, whose addresses are distances from each place
where it is repeated. A run is some pieces ``stride`` bytes apart, so a block whose tokens are cut by a head split is
one run; where there are as many pieces as runs, strides and pieces are left out. Of all these pieces some are wanted,
one behind the other. They fill one slot after another; the first slot is asked for under this ticket, the others under
those that follow. So one message asks for most reads as a whole. A ticket is a random number that is used once; 0 asks
for nothing. What everybody may see of it is ``shown``, and nobody can ask under what he saw.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

from kvweave.errors import RemoteProtocolError
from kvweave.transport.rows import UInt64Array
from kvweave.transport.runs import NO_RUNS, Runs
from kvweave.transport.slots import Slots

MOST_PIECES = 16_384
"""Of one slot."""
MOST_RUNS = 8_192
MOST_REPEATS = 8_192
MOST_PATTERN_PIECES = 65_536
MOST_GIVEN_BACK = 64

_MAGIC = b"kvg4"
_HEAD = struct.Struct("<4sIIIIIIIQQQ")
_NOWHERE = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class GatherRequest:
    """Pieces of ``piece_bytes`` that are wanted from number ``start`` on, of those that ``runs`` have at each of
    ``repeats``: as many as fill ``slots``, which have ``ticket`` and those that follow it. And tickets whose slots may
    be used again.
    """

    ticket: int
    piece_bytes: int
    repeats: UInt64Array
    runs: Runs
    start: int
    slots: Slots
    given_back: tuple[int, ...] = ()

    @staticmethod
    def for_nothing(given_back: tuple[int, ...]) -> GatherRequest:
        """Only gives tickets back."""
        return GatherRequest(0, 0, _NOWHERE, NO_RUNS, 0, Slots(0, 1, 1), given_back)

    @property
    def tickets(self) -> range:
        """One for each slot; none where the first one is 0."""
        return range(self.ticket, self.ticket + self.slots.count) if self.ticket else range(0)

    def encode(self) -> bytes:
        """The message."""
        runs, given_back, slots = self.runs, self.given_back, self.slots
        head = _HEAD.pack(
            _MAGIC, len(given_back), len(self.repeats), len(runs.address), runs.pieces, self.piece_bytes,
            slots.first, slots.each, self.ticket, self.start, slots.pieces,
        )  # fmt: skip
        tickets = struct.pack(f"<{len(given_back)}Q", *given_back)
        return b"".join(
            (head, tickets, self.repeats.tobytes(), runs.address.tobytes(), runs.stride.tobytes(), runs.count.tobytes())
        )

    @staticmethod
    def decode(message: bytes) -> GatherRequest:
        """The request of a message; raises ``RemoteProtocolError`` when it is malformed or too large."""
        if len(message) < _HEAD.size or not message.startswith(_MAGIC):
            raise RemoteProtocolError(f"gather request: {len(message)} bytes starting with {message[:8]!r} are none")
        _, given_back, repeats, runs, pattern, piece_bytes, first, each, ticket, start, pieces = _HEAD.unpack_from(
            message
        )
        if given_back > MOST_GIVEN_BACK or repeats > MOST_REPEATS or runs > MOST_RUNS:
            raise RemoteProtocolError(
                f"gather request: {given_back} tickets, {runs} runs at {repeats} places; at most {MOST_GIVEN_BACK} "
                f"tickets and {MOST_RUNS} runs at {MOST_REPEATS} places can be"
            )
        if not runs <= pattern <= MOST_PATTERN_PIECES or not 0 < first <= MOST_PIECES or not 0 < each <= MOST_PIECES:
            raise RemoteProtocolError(
                f"gather request: {pattern} pieces in {runs} runs, {first} and {each} of a slot; at most "
                f"{MOST_PATTERN_PIECES} pieces of all runs and {MOST_PIECES} of a slot can be, and none is empty"
            )
        slots = Slots(pieces, first, each)
        if start + pieces > repeats * pattern or ticket + slots.count > 2**64:
            raise RemoteProtocolError(
                f"gather request: {pieces} pieces from number {start} on under ticket {ticket} and others; of "
                f"{repeats * pattern} pieces and tickets of 64 bits there are not as many"
            )
        several = runs if pattern > runs else 0
        if len(message) != _HEAD.size + 8 * (given_back + repeats + runs + several):
            raise RemoteProtocolError(f"gather request: {len(message)} bytes do not hold {runs} runs")
        tickets = struct.unpack_from(f"<{given_back}Q", message, _HEAD.size)
        place = _HEAD.size + 8 * given_back
        where = np.frombuffer(message, "<u8", repeats, place)
        place += 8 * repeats
        found = Runs(
            np.frombuffer(message, "<u8", runs, place),
            np.frombuffer(message, "<u4", several, place + 8 * runs),
            np.frombuffer(message, "<u4", several, place + 8 * runs + 4 * several),
        )
        if found.pieces != pattern or not found.count.all():
            raise RemoteProtocolError(f"gather request: its runs have {found.pieces} pieces, its head says {pattern}")
        return GatherRequest(ticket, piece_bytes, where, found, start, slots, tickets)


def shown(ticket: int) -> int:
    """What the source shows of a ticket, which only its reader knows; never 0."""
    digest = hashlib.blake2b(ticket.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
