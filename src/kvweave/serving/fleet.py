"""The life of a fleet: started side by side, waited for, watched, and ended together.

A wait ends in one of three ways: it came about (None), a signal came (``Stopped``), or a program died (``Died``).
Leaving the fleet ends every program, whatever the reason, in bounded time; a second signal meanwhile ends them at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from kvweave.serving.deployment import ROUTER, Deployment
from kvweave.serving.interruption import Interruption
from kvweave.serving.probe import is_healthy
from kvweave.serving.process import END_SECONDS, Process

TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Stopped:
    """A signal asked to stop."""

    signal: int


@dataclass(frozen=True, slots=True)
class Died:
    """A program ended by itself."""

    deployment: Deployment
    exit_code: int


Outcome = Stopped | Died
Tell = Callable[[Deployment, float], None]
"""Called with a program and the seconds since it was started."""


class Fleet:
    """All programs of one ``kvweave serve``. Logs go to ``logs``, one file a program, ``NAME.log``."""

    def __init__(
        self,
        deployments: Sequence[Deployment],
        logs: Path,
        interruption: Interruption,
        end_seconds: float = END_SECONDS,
        healthy: Callable[[str], bool] = is_healthy,
    ) -> None:
        self._deployments = tuple(deployments)
        self._logs = logs
        self._interruption = interruption
        self._end_seconds = end_seconds
        self._healthy = healthy
        self._running: dict[str, tuple[Deployment, Process, float]] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def log(self, deployment: Deployment) -> Path:
        """The file with a program's output."""
        return self._logs / f"{deployment.name}.log"

    def bring_up(self, started: Tell, healthy: Tell, waiting: Callable[[], None]) -> Outcome | None:
        """Starts the servers, then the router once they are healthy; ``waiting`` is called on each tick."""
        servers = [deployment for deployment in self._deployments if deployment.role != ROUTER]
        routers = [deployment for deployment in self._deployments if deployment.role == ROUTER]
        for programs in (servers, routers):
            for deployment in programs:
                self._start(deployment)
                started(deployment, 0.0)
            outcome = self._wait_healthy(programs, healthy, waiting)
            if outcome is not None:
                return outcome
        return None

    def watch(self) -> Outcome:
        """Waits until a program dies or a signal comes."""
        while True:
            outcome = self._tick()
            if outcome is not None:
                return outcome

    def meanwhile(self, work: Callable[[], None]) -> Outcome | None:
        """Does ``work`` in another thread and watches until it is done."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            outcome = self._tick()
            if outcome is not None:
                return outcome
        return None

    def end(self) -> None:
        """Ends every program, all at the same time; a signal meanwhile ends them at once."""
        processes = [process for _, process, _ in self._running.values()]
        for process in processes:
            process.ask_to_end()
        deadline = time.monotonic() + self._end_seconds
        while not all(process.is_ended(0) for process in processes) and time.monotonic() < deadline:
            if self._interruption.wait(TICK_SECONDS) is not None:
                for process in processes:
                    process.kill()
                break
        for process in processes:
            process.end()
        self._running = {}

    def _start(self, deployment: Deployment) -> None:
        process = Process(deployment.command, deployment.environment, self.log(deployment), self._end_seconds)
        self._running[deployment.name] = (deployment, process, time.monotonic())

    def _wait_healthy(
        self, programs: Sequence[Deployment], healthy: Tell, waiting: Callable[[], None]
    ) -> Outcome | None:
        missing = list(programs)
        while missing:
            waiting()
            for deployment in [program for program in missing if self._healthy(program.url)]:
                missing.remove(deployment)
                healthy(deployment, time.monotonic() - self._running[deployment.name][2])
            outcome = self._tick()
            if outcome is not None:
                return outcome
        return None

    def _tick(self) -> Outcome | None:
        """Waits for a moment; what it saw in it. A signal goes before a death, which it may have caused."""
        number = self._interruption.wait(TICK_SECONDS)
        if number is not None:
            return Stopped(number)
        for deployment, process, _ in self._running.values():
            if process.exit_code is not None:
                return Died(deployment, process.exit_code)
        return None
