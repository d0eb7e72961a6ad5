"""The message with which a reader asks a source to gather pieces, and gives back what it has read.

Little endian::

    "kvg1" | tickets given back, runs (u32 each) | ticket (u64) | tickets given back (u64 each) | runs

A run is ``count`` pieces of ``nbytes`` bytes, ``stride`` bytes apart, so a block whose tokens are cut by a head split
is one run. A ticket is a random number that is used once; 0 asks for nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvweave.errors import RemoteProtocolError
from kvweave.transport.pieces import MOST_SIZES, count_sizes
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import UInt64Array

MOST_PIECES = 4_096
MOST_GIVEN_BACK = 64
RUN_RECORD = np.dtype([("address", "<u8"), ("stride", "<u8"), ("nbytes", "<u4"), ("count", "<u4")])

RunArray = npt.NDArray[np.void]

_MAGIC = b"kvg1"
_HEAD = struct.Struct("<4sIIQ")


@dataclass(frozen=True, slots=True, eq=False)
class GatherRequest:
    """What is asked for under ``ticket``, and the tickets whose slots may be used again."""

    ticket: int
    runs: RunArray
    given_back: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The message."""
        head = _HEAD.pack(_MAGIC, len(self.given_back), len(self.runs), self.ticket)
        return head + np.array(self.given_back, "<u8").tobytes() + self.runs.tobytes()

    @staticmethod
    def decode(message: bytes) -> GatherRequest:
        """The request of a message; raises ``RemoteProtocolError`` when it is malformed or too large."""
        if len(message) < _HEAD.size or not message.startswith(_MAGIC):
            raise RemoteProtocolError(f"gather request: {len(message)} bytes starting with {message[:8]!r} are none")
        _, given_back, runs, ticket = _HEAD.unpack_from(message)
        if given_back > MOST_GIVEN_BACK or runs > MOST_PIECES:
            raise RemoteProtocolError(
                f"gather request: {given_back} tickets and {runs} runs; at most {MOST_GIVEN_BACK} and {MOST_PIECES}"
            )
        if len(message) != _HEAD.size + 8 * given_back + RUN_RECORD.itemsize * runs:
            raise RemoteProtocolError(f"gather request: {len(message)} bytes do not hold {runs} runs")
        tickets = np.frombuffer(message, "<u8", given_back, _HEAD.size)
        records = np.frombuffer(message, RUN_RECORD, runs, _HEAD.size + tickets.nbytes)
        return GatherRequest(ticket, records, tuple(tickets.tolist()))

    def pieces(self, regions: RegionTable, most_bytes: int) -> tuple[UInt64Array, UInt64Array]:
        """Address and size of every piece.

        Raises ``RemoteProtocolError`` when there are none or too many, when they are too large or of too many sizes, or
        one does not lie inside a region of main memory.
        """
        counts, sizes = self.runs["count"].astype(np.uint64), self.runs["nbytes"].astype(np.uint64)
        total, pieces = int((counts * sizes).sum()), int(counts.sum())
        if not 0 < pieces <= MOST_PIECES or total > most_bytes or not counts.all() or not sizes.all():
            raise RemoteProtocolError(
                f"gather request: {pieces} pieces of {total} bytes; 1 to {MOST_PIECES} pieces and at most {most_bytes} "
                "bytes are gathered at once, none of them empty"
            )
        if count_sizes(sizes) > MOST_SIZES:
            raise RemoteProtocolError(f"gather request: pieces of more than {MOST_SIZES} sizes")
        run = np.repeat(np.arange(len(counts)), self.runs["count"])
        number = np.arange(pieces, dtype=np.uint64) - (np.cumsum(counts) - counts)[run]
        address, nbytes = self.runs["address"][run] + number * self.runs["stride"][run], sizes[run]
        wrong = regions.first_outside("DRAM", 0, address, nbytes)
        if wrong is not None or (address + nbytes < address).any():
            raise RemoteProtocolError("gather request: a piece is not inside one registered region of main memory")
        return address, nbytes


def runs_of(address: UInt64Array, nbytes: UInt64Array, continues: npt.NDArray[np.bool_] | None = None) -> RunArray:
    """The pieces as runs, in their order; three pieces or more of one size at one distance become one run.

    ``continues`` is what ``continued`` says of these pieces, where it is known.

    >>> runs_of(np.array([0, 64, 128, 7], np.uint64), np.array([8, 8, 8, 8], np.uint64)).tolist()
    [(0, 64, 8, 3), (7, 0, 8, 1)]
    """
    begins = ~(continued(address, nbytes) if continues is None else continues)
    begins[:1] = True
    first = np.flatnonzero(begins)
    count = np.diff(first, append=len(address))
    runs = np.zeros(len(first), RUN_RECORD)
    runs["address"], runs["nbytes"], runs["count"] = address[first], nbytes[first], count
    several = count > 1
    runs["stride"][several] = address[first[several] + 1] - address[first[several]]
    return runs


def continued(address: UInt64Array, nbytes: UInt64Array) -> npt.NDArray[np.bool_]:
    """Which pieces belong to the run of the piece before them.

    Between two pieces lies a step. Steps alike one behind the other make a run of their pieces, where there are two or
    more of them; the first step after such a run is not part of the next one, because its piece is taken.
    """
    continues = np.zeros(len(address), np.bool_)
    if len(address) < 3:
        return continues
    step = address[1:] - address[:-1]
    alike = (step[1:] == step[:-1]) & (nbytes[2:] == nbytes[:-2]) & (nbytes[1:-1] == nbytes[:-2])
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
