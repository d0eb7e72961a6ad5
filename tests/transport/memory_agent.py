"""An agent that reads a staging ring of this process, for staged reads without NIXL; what it does can be delayed."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.rows import ReadRows


@dataclass(eq=False)
class Piece:
    rows: ReadRows
    polls: int = 0


@dataclass
class MemoryAgent:
    """Copies when a piece is started; it ends ``delay`` looks later. ``before_copy`` sees each copy first.

    A ``fragile`` one fails at every so many calls.
    """

    delay: int = 0
    before_copy: Callable[[ReadRows], None] = lambda rows: None
    lost: bool = False
    broken: bool = False
    fragile: int = 0
    calls: int = 0
    messages: deque[bytes] = field(default_factory=deque)
    pieces: set[Piece] = field(default_factory=set)

    def prepare(self, peer: str, rows: ReadRows) -> Piece:
        self._require(peer)
        piece = Piece(rows)
        self.pieces.add(piece)
        return piece

    def start(self, piece: Piece) -> None:
        self._require("peer")
        self.before_copy(piece.rows)
        piece.polls = self.delay
        for row in range(len(piece.rows)):
            ctypes.memmove(
                int(piece.rows.target_address[row]), int(piece.rows.source_address[row]), int(piece.rows.nbytes[row])
            )

    def is_over(self, piece: Piece) -> bool:
        self._require("peer")
        piece.polls -= 1
        return piece.polls < 0

    def notify(self, peer: str, message: bytes) -> None:
        self._require(peer)
        self.messages.append(message)

    def release(self, piece: Piece) -> None:
        self.pieces.discard(piece)

    def _require(self, peer: str) -> None:
        self.calls += 1
        if self.fragile and self.calls % self.fragile == 0:
            raise TransportError(TransportErrorKind.UNAVAILABLE, f"{peer} cannot be reached now and then")
        if self.lost or self.broken:
            kind = TransportErrorKind.PEER_LOST if self.lost else TransportErrorKind.UNAVAILABLE
            raise TransportError(kind, f"{peer} is gone")
