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
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np

from kvweave.transport.landing import large_pages
from kvweave.transport.pieces import ByteArray

_NAME = "kvweave"
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0)


class SharedMemory:
    """Zeros that others may map by ``file``, until it is closed; ``file`` is -1 where the system has no such memory."""

    def __init__(self, nbytes: int) -> None:
        self.file, self.memory = _shared(nbytes)
        self._process = os.getpid()
        self._closing = weakref.finalize(self, _close, self.file)

    @property
    def owned(self) -> bool:
        """Whether this is the process that made it, not one that was forked from it."""
        return os.getpid() == self._process

    def close(self) -> None:
        """Nobody finds it any more; who has mapped it keeps it, as does this process."""
        self._closing()
        self.file = -1


class MappedMemory:
    """Memory of another process, to be read: its first ``nbytes``, with ``token`` at ``token_at``."""

    def __init__(self, memory: ByteArray, process_file: int, token: bytes, token_at: int) -> None:
        self.memory = memory
        self._token = token
        self._token_memory = memory[token_at : token_at + len(token)]
        self._ended = select.poll()
        self._ended.register(process_file, select.POLLIN)
        self._closing = weakref.finalize(self, _close, process_file)

    @staticmethod
    def of(process: int, file: int, nbytes: int, token: bytes, token_at: int) -> MappedMemory | None:
        """What that process shares; None where it cannot be had, or is not what it should be."""
        if file < 0 or not hasattr(os, "pidfd_open"):
            return None
        try:
            process_file = os.pidfd_open(process)
        except (OSError, OverflowError):
            return None
        try:
            mapped = MappedMemory(_mapped(process, file, nbytes), process_file, token, token_at)
        except (OSError, ValueError):
            _close(process_file)
            return None
        if mapped.alive:
            return mapped
        mapped.close()
        return None

    @property
    def alive(self) -> bool:
        """Whether the process runs, and still shares it; not to be asked of what is closed."""
        return self._token_memory.tobytes() == self._token and not self._ended.poll(0)

    def close(self) -> None:
        """Looks after the process no more; the memory stays while anybody refers to it."""
        self._closing()


def _shared(nbytes: int) -> tuple[int, ByteArray]:
    """A file in memory that cannot shrink, and its memory; -1 and memory of our own where there is no such thing."""
    file = -1
    try:
        file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        mapped = mmap.mmap(file, nbytes)
    except (AttributeError, OSError):
        _close(file)
        return -1, large_pages(nbytes)
    with suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    memory[:] = 0  # so that the pages are there before they are wanted
    return file, memory


def _mapped(process: int, file: int, nbytes: int) -> ByteArray:
    """Raises ``OSError`` or ``ValueError`` for anything but such a file of that size.

    Its name is looked at first: to open a file that is something else can disturb whoever has it.
    """
    place = f"/proc/{process}/fd/{file}"
    if not str(Path(place).readlink()).startswith(f"/memfd:{_NAME}"):
        raise OSError(f"{place} is no shared memory")
    found = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not fcntl.fcntl(found, fcntl.F_GET_SEALS) & _SEALS:
            raise OSError(f"{place} may shrink")
        memory: ByteArray = np.frombuffer(mmap.mmap(found, nbytes, mmap.MAP_SHARED, mmap.PROT_READ), np.uint8)
    finally:
        os.close(found)
    return memory


def _close(file: int) -> None:
    if file >= 0:
        with suppress(OSError):
            os.close(file)
