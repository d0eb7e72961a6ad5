"""The guard by itself, as a command line; ``test_process`` shows what it is for."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvweave.serving import guard
from tests.serving.programs import TIDIED_UP_AFTER, WITH_WORKERS, is_alive, program
from tests.serving.waiting import wait_until


def start(command: Sequence[str], seconds: float = 20.0) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", guard.__file__, str(seconds), *command], stdin=subprocess.PIPE)


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("import sys; sys.exit(7)", 7), ("import os; os.abort()", 128 + signal.SIGABRT)]
)
def test_it_ends_as_its_command_does(text: str, code: int) -> None:
    with start(program(text)) as process:
        assert process.wait() == code


def test_what_the_command_leaves_behind_may_tidy_up(tmp_path: Path) -> None:
    file = tmp_path / "tidy"
    with start(program(TIDIED_UP_AFTER, file)) as process:
        assert process.wait() == 0
    assert file.read_text() == "tidy"


def test_it_needs_no_package() -> None:
    imported = [line for line in Path(guard.__file__).read_text().splitlines() if line.startswith(("import", "from"))]
    assert [line for line in imported if line.split()[1].split(".")[0] not in sys.stdlib_module_names] == []


def test_a_killed_guard_takes_its_command_along(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with start(program(WITH_WORKERS, file)) as process:
        wait_until(lambda: file.exists() and len(file.read_text().split()) == 3, "the program and two workers")
        command, *workers = map(int, file.read_text().split())
        process.kill()
        wait_until(lambda: not is_alive(command), "the command's end")
    for worker in workers:
        if is_alive(worker):
            subprocess.run(["kill", "-KILL", str(worker)], check=False)
