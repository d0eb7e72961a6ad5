"""A NIXL agent that counts how long its calls take, and which: everything else that a request costs is not NIXL's."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

POST = "transfer"
"""NIXL's post call. On shared memory it is the copy itself, in the calling thread."""


def replace_agent(transport: Any, make: Callable[[Any], Any]) -> Any:
    """Puts something made of it in the place of a NIXL transport's agent, and gives that."""
    holder = transport._agent if hasattr(transport._agent, "_agent") else transport
    holder._agent = made = make(holder._agent)
    return made


class TimedAgent:
    """Stands for an agent, call by call. ``seconds`` has the time of each call's name since ``reset``.

    With ``only`` nothing but that call is counted, and the others cost what they cost without a stopwatch.
    """

    def __init__(self, agent: Any, only: str | None = None) -> None:
        self._agent = agent
        self._only = only
        self._found: list[str] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        """Comes here once for each name: what is found is then an attribute."""
        found = getattr(self._agent, name)
        if callable(found) and self._only in (None, name):
            found = self._timed(name, found)
        self._found.append(name)
        setattr(self, name, found)
        return found

    @property
    def post_seconds(self) -> float:
        """Time inside the post call."""
        return self.seconds[POST]

    @property
    def other_seconds(self) -> float:
        """Time inside all calls but the post call."""
        return sum(self.seconds.values()) - self.post_seconds

    def reset(self) -> None:
        """Begins to count anew."""
        self.seconds.clear()

    def count(self, only: str | None) -> None:
        """Counts that call alone from now on, or all."""
        self._only = only
        while self._found:
            delattr(self, self._found.pop())

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - started

        return timed
