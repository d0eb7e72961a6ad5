"""The blocks of one request that several offers share: they are free when the last of these has been released."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from kvweave.engines.hf.paged_memory import Tables


class PinnedTables:
    """Blocks with holders: at first one, the request that computes. Callable from any thread."""

    def __init__(self, tables: Tables, give_back: Callable[[Tables], None]) -> None:
        self.tables = tables
        self._give_back = give_back
        self._holders = 1
        self._lock = Lock()

    def hold(self) -> None:
        """One holder more, who lets go once; call it before he can."""
        with self._lock:
            self._holders += 1

    def let_go(self, _: object = None) -> None:
        """One holder fewer; after the last one the blocks are free."""
        with self._lock:
            self._holders -= 1
            free = not self._holders
        if free:
            self._give_back(self.tables)
