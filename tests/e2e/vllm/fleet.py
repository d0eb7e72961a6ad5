"""The servers of a sweep: they stay up from one pair to the next, as long as some pair to come needs them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from tests.e2e.vllm.pairs import Place
from tests.e2e.vllm.servers import Deployment, Progress, Server, ServerFailed, start, wait_healthy

START_SECONDS = 600.0
"""Six workers start in a minute on two cores of their own, and take several where others work too."""


class Fleet:
    """Servers by their place. A context manager: whatever happens, all of them end with it."""

    def __init__(self, logs: Path, progress: Progress = print) -> None:
        self.servers: dict[Place, Server] = {}
        self.failed: dict[Place, ServerFailed] = {}
        """Servers that did not start, with the reason. They are not tried again as long as they are wanted."""
        self._logs, self._progress = logs, progress

    def __enter__(self) -> Fleet:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(set(self.servers))

    def hold(self, wanted: Mapping[Place, Deployment]) -> None:
        """Ends the servers that are not wanted, starts those that are missing, and waits until they answer."""
        dead = {place for place, server in self.servers.items() if server.process.poll() is not None}
        self.end((set(self.servers) - set(wanted)) | dead)
        self.failed = {place: error for place, error in self.failed.items() if place in wanted}
        missing = [place for place in wanted if place not in self.servers and place not in self.failed]
        began = time.monotonic()
        for place in missing:
            self.servers[place] = start(wanted[place], self._logs)
        for place in missing:
            self._await(place)
        if missing:
            self._progress(f"  {len(missing)} servers started in {time.monotonic() - began:.0f} s")

    def end(self, places: set[Place]) -> None:
        """Ends servers side by side; those that are gone already are no fault."""
        places = places & set(self.servers)
        ending = [self.servers[place] for place in places]
        if ending:
            with ThreadPoolExecutor(len(ending)) as pool:
                list(pool.map(Server.end, ending))
        for place in places:
            del self.servers[place]

    def _await(self, place: Place) -> None:
        try:
            wait_healthy(self.servers[place], lambda _: None, START_SECONDS)
        except ServerFailed as error:
            self.failed[place] = error
            self.end({place})
