"""Moments at which something is due: one per key, the next one known at once."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """At most one moment per key; setting again replaces it."""

    def __init__(self) -> None:
        self._moments: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()

    def set(self, key: Key, moment: float) -> None:
        """Makes ``key`` due at ``moment``."""
        entry = (moment, next(self._order))
        self._moments[key] = entry
        heapq.heappush(self._heap, (*entry, key))
        if len(self._heap) > 64 + 4 * len(self._moments):
            self._heap = [(*entry, key) for key, entry in self._moments.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Forgets ``key``; an unknown one is ignored."""
        self._moments.pop(key, None)

    def get(self, key: Key) -> float | None:
        """When ``key`` is due; None when it is not waiting."""
        entry = self._moments.get(key)
        return None if entry is None else entry[0]

    def next(self) -> float | None:
        """The earliest moment, None when there is none."""
        while self._heap and self._moments.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Key]:
        """Takes out the keys whose moment has come, earliest first."""
        keys: list[Key] = []
        while (moment := self.next()) is not None and moment <= now:
            key = heapq.heappop(self._heap)[2]
            del self._moments[key]
            keys.append(key)
        return keys
