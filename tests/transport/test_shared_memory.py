"""Memory that is shared stays what it was for whoever mapped it; nothing else is ever mapped."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection

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
    found = mapped(ours.recv(), process=process.pid)
    assert found is not None and found.alive
    process.kill()
    process.join()
    assert not found.alive and found.memory[TOKEN_AT] == TOKEN[0]
    found.close()
