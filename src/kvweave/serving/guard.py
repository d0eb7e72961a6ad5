"""Runs one command and sees to its end, whatever happens to the program that wanted it.

``python guard.py SECONDS COMMAND...`` is the guard's command line. Its standard input is a pipe that only that program
holds: when it closes, on purpose or because the program was killed, the command's process group gets ``SIGINT``, and
after ``SECONDS`` ``SIGKILL``. ``SIGTERM`` to the guard kills at once. Processes that the command leaves behind become
the guard's children (it is their subreaper); they have two seconds to tidy up, as Python's tracker of shared memory
does, and are killed then, at once where the command was killed itself. It ends with the command's exit code, 128 + n
for signal n. It runs by its path and imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NOT_FOUND = 127
TIDY_SECONDS = 2.0
_GLANCE_SECONDS = 0.02
_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
"""``PR_SET_PDEATHSIG`` and ``PR_SET_CHILD_SUBREAPER`` of linux/prctl.h."""


def main(arguments: Sequence[str]) -> int:
    """Runs ``arguments[1:]``; gives its exit code."""
    seconds, command = float(arguments[0]), list(arguments[1:])
    _control_process(_SET_CHILD_SUBREAPER, 1)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_prepare)  # noqa: PLW1509 - one thread
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_FOUND
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(child.pid, signal.SIGKILL))
    watched = os.pidfd_open(child.pid)
    ready, _, _ = select.select([sys.stdin.fileno(), watched], [], [])
    if watched not in ready:
        _end(child.pid, watched, seconds)
    code = child.wait()
    if code != -signal.SIGKILL:
        _wait_for_orphans()
    _signal_group(child.pid, signal.SIGKILL)
    _kill_orphans()
    return code if code >= 0 else 128 - code


def _end(group: int, watched: int, seconds: float) -> None:
    for number, wait in ((signal.SIGINT, seconds), (signal.SIGKILL, None)):
        _signal_group(group, number)
        if select.select([watched], [], [], wait)[0]:
            return


def _wait_for_orphans() -> None:
    """Waits for what became this process's child to end by itself, ``TIDY_SECONDS`` at most."""
    deadline = time.monotonic() + TIDY_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(_GLANCE_SECONDS)


def _kill_orphans() -> None:
    """Kills what became this process's child, and what becomes it by that, until there is nothing."""
    with suppress(ChildProcessError):
        while True:
            for process in _children():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """This process's children, from the fourth field of each ``/proc/PID/stat``; a name may have spaces in it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found.append(int(stat.parent.name))
    return found


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _prepare() -> None:
    """In the command's process: it dies with the guard, and hears ``SIGINT`` though its program ignores it, as what a
    script starts in the background does.
    """
    _control_process(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _control_process(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
