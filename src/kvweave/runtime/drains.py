"""Who waits for an engine to be drained: it takes nothing new, and what it had has ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

logger = logging.getLogger("kvweave")


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new; the future hears when everything has ended."""

    future: Future[None]


def drain_command() -> Drain:
    """A command whose future cannot be cancelled, so that the polling thread may always answer."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return Drain(future)


class Drains:
    """All who wait for one engine, for the polling thread alone."""

    def __init__(self, engine_id: str) -> None:
        self._engine_id = engine_id
        self._waiting: list[Future[None]] = []
        self._over = False

    def begin(self, future: Future[None]) -> None:
        """Somebody waits."""
        if self._over:
            future.set_result(None)
        else:
            if not self._waiting:
                logger.info("%s: takes nothing new, and ends what it has", self._engine_id)
            self._waiting.append(future)

    def end(self) -> None:
        """The engine is drained."""
        self._over = True
        if self._waiting:
            logger.info("%s: is drained: nothing is left", self._engine_id)
        for future in self._waiting:
            future.set_result(None)
        self._waiting.clear()

    def end_all(self, late: Iterable[Future[None]]) -> None:
        """The engine has ended: nothing is left of it, for those whose command came too late either."""
        self.end()
        for future in late:
            future.set_result(None)
