"""A command under its guard: all it started ends with it, whoever ends and however."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvweave.serving.process import Process
from tests.serving.programs import WITH_WORKERS, is_alive, program
from tests.serving.waiting import wait_until

SOURCE = Path(__file__).parents[2] / "src"
OWNER = """
import sys, time
from pathlib import Path
from kvweave.serving.process import Process
process = Process(sys.argv[2:], {}, Path(sys.argv[1]), 20.0)
time.sleep(600)
"""


def pids(file: Path) -> list[int]:
    wait_until(lambda: file.exists() and len(file.read_text().split()) == 3, "the program and two workers")
    return [int(word) for word in file.read_text().split()]


def all_gone(processes: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, processes)), f"the end of {processes}")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.end()


def start(tmp_path: Path, started: list[Process], *manners: str, seconds: float = 20.0) -> tuple[Process, list[int]]:
    file = tmp_path / "pids"
    process = Process(program(WITH_WORKERS, file, *manners), {}, tmp_path / "log", seconds)
    started.append(process)
    return process, pids(file)


def test_it_is_interrupted_though_its_program_ignores_that(tmp_path: Path, started: list[Process]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process, _ = start(tmp_path, started)
    finally:
        signal.signal(signal.SIGINT, before)
    process.end()
    assert process.exit_code == 128 + signal.SIGINT


def test_ending_it_ends_its_workers_too(tmp_path: Path, started: list[Process]) -> None:
    process, family = start(tmp_path, started)
    assert process.exit_code is None
    process.end()
    assert not any(map(is_alive, family))
    assert process.exit_code not in (None, 0)


def test_what_does_not_end_by_itself_is_killed(tmp_path: Path, started: list[Process]) -> None:
    process, family = start(tmp_path, started, "stubborn", seconds=0.2)
    process.end()
    assert (process.exit_code, [is_alive(each) for each in family]) == (128 + signal.SIGKILL, [False] * 3)


def test_killing_does_not_wait(tmp_path: Path, started: list[Process]) -> None:
    process, family = start(tmp_path, started, "stubborn", seconds=600.0)
    process.kill()
    assert process.is_ended(60.0)
    assert not any(map(is_alive, family))


def test_workers_of_a_program_that_died_are_killed(tmp_path: Path, started: list[Process]) -> None:
    process, family = start(tmp_path, started, "dies")
    assert process.is_ended(60.0)
    assert (process.exit_code, [is_alive(each) for each in family]) == (3, [False] * 3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_nothing_outlives_the_program_that_wanted_it(tmp_path: Path, number: int) -> None:
    file = tmp_path / "pids"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log"), *program(WITH_WORKERS, file)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    family = pids(file)
    owner.send_signal(number)
    owner.wait()
    all_gone(family)


def test_a_worker_that_is_killed_does_not_end_the_program(tmp_path: Path, started: list[Process]) -> None:
    process, (_, worker, _) = start(tmp_path, started)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker), "the worker's end")
    assert process.exit_code is None


def test_output_goes_to_the_log_and_variables_are_added(tmp_path: Path, started: list[Process]) -> None:
    text = "import os, sys; print(os.environ['GREETING'], flush=True); print('and this', file=sys.stderr)"
    process = Process(program(text), {"GREETING": "good day"}, tmp_path / "log")
    started.append(process)
    assert process.is_ended(60.0)
    assert (process.exit_code, (tmp_path / "log").read_text()) == (0, "good day\nand this\n")


def test_a_command_that_does_not_exist_says_so(tmp_path: Path, started: list[Process]) -> None:
    process = Process(("no-such-program",), {}, tmp_path / "log")
    started.append(process)
    assert process.is_ended(60.0)
    assert (process.exit_code, (tmp_path / "log").read_text()) == (127, "no-such-program: No such file or directory\n")
