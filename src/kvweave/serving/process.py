"""A command under its guard: started with a log, asked for its exit code, ended in bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kvweave.serving import guard

END_SECONDS = 20.0
"""How long a command may take to end by itself."""
_KILL_SECONDS = 10.0


class Process:
    """A running command. Its output goes to ``log``; ``environment`` is added to this process's own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, end_seconds: float = END_SECONDS
    ) -> None:
        self.log = log
        self._end_seconds = end_seconds
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(end_seconds), *command],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n after signal n."""
        return self._guard.poll()

    def ask_to_end(self) -> None:
        """Lets go of it: its group gets ``SIGINT``, and ``SIGKILL`` after ``end_seconds``."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()

    def kill(self) -> None:
        """Ends it at once."""
        self._guard.terminate()

    def is_ended(self, seconds: float) -> bool:
        """Whether it has ended within ``seconds``, with everything that it started."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Ends it and waits for that; bounded."""
        self.ask_to_end()
        if not self.is_ended(self._end_seconds + _KILL_SECONDS):
            with suppress(ProcessLookupError):
                os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
