"""Memory that other processes of this machine may map, and the mapping of it there (memfd and pidfd, Linux).

Who maps it is told the process and the number of its file. The memory can never shrink, so whoever has mapped it may
read it as long as it likes; that it is the right one, and that its owner still lives, says a token inside, which the
owner takes away when it ends, and the process itself.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
from contextlib import suppress

import numpy as np

from kvweave.transport.landing import large_pages
from kvweave.transport.pieces import ByteArray

_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0)


class SharedMemory:
    """Zeros that others may map by ``file``, until it is closed; ``file`` is -1 where the system has no such memory."""

    def __init__(self, nbytes: int) -> None:
        self.file = _sealed_file(nbytes)
        shared = self.file >= 0
        self.memory: ByteArray = (
            np.frombuffer(mmap.mmap(self.file, nbytes), np.uint8) if shared else large_pages(nbytes)
        )
        self.memory[:] = 0  # the pages are there before they are wanted

    def close(self) -> None:
        """Nobody maps it any more; who has mapped it keeps it, as does this process."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


class MappedMemory:
    """Memory of another process, to be read: its first ``nbytes``, with ``token`` at ``token_at``."""

    def __init__(self, memory: ByteArray, process_file: int, token: bytes, token_at: int) -> None:
        self.memory = memory
        self._process_file = process_file
        self._token = token
        self._token_memory = memory[token_at : token_at + len(token)]
        self._ended = select.poll()
        self._ended.register(process_file, select.POLLIN)

    @staticmethod
    def of(process: int, file: int, nbytes: int, token: bytes, token_at: int) -> MappedMemory | None:
        """What that process shares; None where it cannot be had, or is not what it should be."""
        if file < 0 or not hasattr(os, "pidfd_open"):
            return None
        try:
            memory = _mapped(process, file, nbytes)
            process_file = os.pidfd_open(process)
        except (OSError, OverflowError, ValueError):
            return None
        mapped = MappedMemory(memory, process_file, token, token_at)
        if not mapped.alive:
            mapped.close()
            return None
        return mapped

    @property
    def alive(self) -> bool:
        """Whether the process runs, and still shares it."""
        return self._token_memory.tobytes() == self._token and not self._ended.poll(0)

    def close(self) -> None:
        """Looks after the process no more."""
        with suppress(OSError):
            os.close(self._process_file)


def _sealed_file(nbytes: int) -> int:
    """A file in memory that cannot shrink; -1 where there is no such thing."""
    try:
        file = os.memfd_create("kvweave", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):
        return -1
    os.ftruncate(file, nbytes)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


def _mapped(process: int, file: int, nbytes: int) -> ByteArray:
    """Raises ``OSError`` or ``ValueError`` for anything but such a file of that size."""
    found = os.open(f"/proc/{process}/fd/{file}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not fcntl.fcntl(found, fcntl.F_GET_SEALS) & _SEALS:
            raise OSError("it may shrink")
        memory: ByteArray = np.frombuffer(mmap.mmap(found, nbytes, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)
    finally:
        os.close(found)
    return memory
