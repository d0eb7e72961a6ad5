"""How many bytes a rank is reading from each source now: what its next small request is spread by.

Bytes count from the post until their read is seen to have ended, however it ends.
"""

from __future__ import annotations

from collections import Counter

from kvweave.transport.base import ReadHandle


class InFlight:
    """The open reads of one rank, by the name of the peer that they read from."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()
        self._open: list[tuple[ReadHandle, int]] = []

    def add(self, handle: ReadHandle, nbytes: int) -> None:
        """A read was posted."""
        self._open.append((handle, nbytes))
        self._bytes[handle.peer] += nbytes

    def settle(self) -> None:
        """Lets go of reads that have ended."""
        ended = [read for read in self._open if read[0].state.terminal]
        if not ended:
            return
        self._open = [read for read in self._open if not read[0].state.terminal]
        for handle, nbytes in ended:
            self._bytes[handle.peer] -= nbytes
            if not self._bytes[handle.peer]:
                del self._bytes[handle.peer]

    def of(self, peer: str) -> int:
        """Bytes under way from one peer."""
        return self._bytes[peer]
