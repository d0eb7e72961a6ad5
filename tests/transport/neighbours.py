"""Neighbours for tests: this process itself, and one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvweave.testing.source_process import SourceProcess
from kvweave.testing.transport_contract import fresh_name, random_source
from kvweave.transport.agent_data import PROBE_BYTES, AgentData
from kvweave.transport.neighbour import Neighbour
from kvweave.transport.rows import ReadRows

PROBE = np.frombuffer(bytearray(os.urandom(PROBE_BYTES)), np.uint8)


def ourselves(probe: bytes | None = None) -> Neighbour:
    """This process, which has another probe than the given one."""
    return Neighbour("ourselves", os.getpid(), PROBE.ctypes.data, PROBE.tobytes() if probe is None else probe)


@contextmanager
def another_process() -> Iterator[tuple[SourceProcess, int, Neighbour]]:
    """A source, the address of its memory there, and the neighbour that it is."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "memory"
        file.write_bytes(random_source().tobytes())
        process = SourceProcess(file, fresh_name("source"))
        address, agent_data = process.description()
        data = AgentData.decode(agent_data)
        try:
            yield process, address, Neighbour(data.name, data.process, data.probe_address, data.probe)
        finally:
            process.end()


def rows_between(source: int, target: int, places: tuple[np.ndarray, np.ndarray, np.ndarray]) -> ReadRows:
    """Rows from offsets at a source, offsets at a target, and sizes."""
    at_source, at_target, nbytes = (np.asarray(one).astype(np.uint64) for one in places)
    return ReadRows(at_source + np.uint64(source), at_target + np.uint64(target), nbytes)
