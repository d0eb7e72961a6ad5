"""Memory that is shared stays what it was for whoever mapped it; nothing else is ever mapped."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from kvweave.transport.shared_memory import MappedMemory, SharedMemory

TOKEN, TOKEN_AT, NBYTES = b"0123456789abcdef", 64, 1 << 16


@pytest.fixture
def shared() -> Iterator[SharedMemory]:
    made = SharedMemory(NBYTES)
    made.memory[TOKEN_AT : TOKEN_AT + len(TOKEN)] = np.frombuffer(TOKEN, np.uint8)
    yield made
    made.close()


def mapped(file: int, nbytes: int = NBYTES, process: int | None = None) -> MappedMemory | None:
    return MappedMemory.of(os.getpid() if process is None else process, file, nbytes, TOKEN, TOKEN_AT)


def test_both_see_the_same_bytes_and_only_the_owner_writes(shared: SharedMemory) -> None:
    found = mapped(shared.file)
    assert found is not None
    shared.memory[4000] = 7
    assert found.memory[4000] == 7 and not found.memory.flags.writeable
    found.close()


def test_it_cannot_shrink_under_who_has_mapped_it(shared: SharedMemory) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(shared.file, 4096)


def test_a_token_that_is_gone_says_that_nobody_shares_it_any_more(shared: SharedMemory) -> None:
    found = mapped(shared.file)
    assert found is not None and found.alive
    shared.memory[TOKEN_AT] = 0
    assert not found.alive
    found.close()


def test_a_file_that_is_something_else_is_not_even_opened(shared: SharedMemory, tmp_path: Path) -> None:
    """Opening would end this process: it holds a lease, and whoever breaks it has SIGIO sent."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)"
    code += "; print(f.fileno(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "file")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert mapped(int(other.stdout.readline()), process=other.pid) is None
        other.communicate(timeout=20)
    assert other.returncode == 0


def test_where_files_may_not_be_so_large_memory_is_not_shared() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = open_files()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        made = SharedMemory(NBYTES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert made.file == -1 and made.memory.nbytes == NBYTES and not made.memory.any()
    assert open_files() == before


def test_closing_twice_closes_nobody_elses_file(shared: SharedMemory) -> None:
    found = mapped(shared.file)
    assert found is not None
    for closed in (found, shared):
        closed.close()
        other = os.open("/dev/null", os.O_RDONLY)
        closed.close()
        os.fstat(other)
        os.close(other)


def test_what_is_forgotten_leaves_no_file_open() -> None:
    before = open_files()
    made = SharedMemory(NBYTES)
    made.memory[TOKEN_AT : TOKEN_AT + len(TOKEN)] = np.frombuffer(TOKEN, np.uint8)
    found = mapped(made.file)
    assert found is not None
    del made, found
    assert open_files() == before


def test_what_is_closed_is_mapped_no_more(shared: SharedMemory) -> None:
    file = shared.file
    shared.close()
    assert mapped(file) is None
    shared.close()


def test_files_that_may_shrink_pipes_and_devices_are_not_mapped(shared: SharedMemory) -> None:
    reading, writing = os.pipe()
    device = os.open("/dev/zero", os.O_RDONLY)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(TOKEN_AT) + TOKEN + bytes(NBYTES))
        file.flush()
        for wrong in (file.fileno(), reading, writing, device, 0, -1, 2**31 - 1):
            assert mapped(wrong) is None
    for opened in (reading, writing, device):
        os.close(opened)


@pytest.mark.parametrize("process", [0, -1, 2**22 + 1, 2**63], ids="process {}".format)
def test_processes_that_are_not_there_share_nothing(shared: SharedMemory, process: int) -> None:
    assert mapped(shared.file, process=process) is None


def test_more_than_is_shared_is_not_mapped(shared: SharedMemory) -> None:
    assert mapped(shared.file, nbytes=2 * NBYTES) is None


def open_files() -> int:
    gc.collect()  # what earlier tests left
    return len(list(Path("/proc/self/fd").iterdir()))


def share(connection: Connection) -> None:
    made = SharedMemory(NBYTES)
    made.memory[TOKEN_AT : TOKEN_AT + len(TOKEN)] = np.frombuffer(TOKEN, np.uint8)
    connection.send(made.file)
    connection.recv()


def test_the_end_of_its_process_is_seen() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=share, args=(theirs,))
    process.start()
    theirs.close()
    found = mapped(ours.recv(), process=process.pid)
    assert found is not None and found.alive
    process.kill()
    process.join()
    assert not found.alive and found.memory[TOKEN_AT] == TOKEN[0]
    found.close()
