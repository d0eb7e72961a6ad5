"""NIXL's agent, and beside it the system's own copies from peers that run on this machine.

Connections, messages and proofs are NIXL's with every peer, and so are reads from all others and of other memory.
"""

from __future__ import annotations

from typing import Any

from kvweave.transport.copying import CopiedPiece, most_helpers
from kvweave.transport.neighbour import Neighbour
from kvweave.transport.nixl_agent import NixlAgent
from kvweave.transport.rows import ReadRows


class HostAgent(NixlAgent):
    """A ``NixlAgent`` that may know some of its peers as neighbours."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._neighbours: dict[str, Neighbour] = {}

    def meet(self, neighbour: Neighbour) -> None:
        """Reads from this peer by copying from now on, if the system allows it."""
        if neighbour.reachable:
            self._neighbours[neighbour.name] = neighbour

    def helpers(self, peer: str) -> int:
        """How many threads may share in copying from this peer."""
        return most_helpers() if peer in self._neighbours else 0

    def copies(self, peer: str, rows: ReadRows) -> bool:
        """Whether these rows are copied, which needs nothing of the peer."""
        return peer in self._neighbours and rows.source_memory == rows.target_memory == "DRAM"

    def remove(self, peer: str) -> None:
        """See ``NixlAgent``."""
        self._neighbours.pop(peer, None)
        super().remove(peer)

    def prepare(self, peer: str, rows: ReadRows) -> Any:
        """See ``NixlAgent``."""
        if self.copies(peer, rows):
            return CopiedPiece(self._neighbours[peer], rows)
        return super().prepare(peer, rows)

    def start(self, piece: Any) -> None:
        """See ``NixlAgent``."""
        if isinstance(piece, CopiedPiece):
            piece.start()
        else:
            super().start(piece)

    def is_over(self, piece: Any) -> bool:
        """See ``NixlAgent``."""
        return piece.is_over() if isinstance(piece, CopiedPiece) else super().is_over(piece)

    def release(self, piece: Any) -> None:
        """See ``NixlAgent``; waits for what is being copied."""
        if isinstance(piece, CopiedPiece):
            piece.end()
        else:
            super().release(piece)
