"""What a source gathers for one request, slot by slot, and only from memory that is registered."""

from __future__ import annotations

import numpy as np

from kvweave.errors import RemoteProtocolError
from kvweave.transport.gather_request import GatherRequest
from kvweave.transport.pieces import PieceGrid, Pieces
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import UInt64Array, sums


class Gathering:
    """A request's pieces. ``weight`` is how many addresses are kept for it.

    Where the whole pattern surely lies inside registered memory wherever it is repeated, its pieces are not looked at
    again; otherwise those of each slot are, when it is their turn.

    Raises ``RemoteProtocolError`` when no pieces are asked for, or empty ones, or more than ``most_bytes`` a slot.
    """

    def __init__(self, request: GatherRequest, regions: RegionTable, most_bytes: int) -> None:
        self.slots = request.slots
        self._size, self._start, self._regions = request.piece_bytes, request.start, regions
        nbytes = self.slots.most * self._size
        if not 0 < nbytes <= most_bytes:
            raise RemoteProtocolError(
                f"gather request: {self.slots.pieces} pieces of {self._size} bytes, {self.slots.most} a slot; 1 to "
                f"{most_bytes} bytes are gathered at once"
            )
        self._repeats, self._pattern = request.repeats, request.runs.addresses()
        self.weight = len(self._repeats) + len(self._pattern)
        self._grid = self._checked()

    def pieces(self, number: int) -> Pieces:
        """Those of one slot; raises ``RemoteProtocolError`` when one is not inside a region of main memory."""
        start, stop = self.slots.bounds(number)
        start, stop = start + self._start, stop + self._start
        if self._grid is not None:
            return self._grid.take(start, stop)
        address: UInt64Array = sums(self._repeats, self._pattern, start, stop)
        nbytes = np.full(len(address), self._size, np.uint64)
        if self._regions.first_outside("DRAM", 0, address, nbytes) is not None:
            raise RemoteProtocolError("gather request: a piece is not inside one registered region of main memory")
        return Pieces(address, self._size)

    def _checked(self) -> PieceGrid | None:
        """All pieces of the pattern, wherever it is repeated, if all of them surely lie inside registered memory."""
        repeats, lowest, highest = self._repeats, self._pattern.min(), self._pattern.max()
        if int(repeats.max()) + int(highest) >= 2**64:
            return None
        if not self._regions.holds("DRAM", 0, repeats + lowest, repeats + highest, self._size):
            return None
        return PieceGrid(repeats, self._pattern, self._size)
