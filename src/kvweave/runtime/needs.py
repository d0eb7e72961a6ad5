"""Which agents of a peer must look after our reads: all, until each has served one that needed nothing of it."""

from __future__ import annotations

from collections.abc import Iterable

from kvweave.transport.base import ReadHandle, ReadState


class Needs:
    """Of one rank of ours at one peer; ``agents`` are those that it may read from."""

    def __init__(self, agents: Iterable[str]) -> None:
        self._agents = set(agents)

    def note(self, handles: Iterable[ReadHandle]) -> bool:
        """Reads have ended; whether the next ones need the peer's help, or would be better with it."""
        for handle in handles:
            if handle.attended:
                self._agents.add(handle.peer)
            elif handle.state is ReadState.DONE:
                self._agents.discard(handle.peer)
        return bool(self._agents)
