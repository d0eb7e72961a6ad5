from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.memory import CacheShape, EngineMemory
from kvweave.benchmarks.playback import PlaybackAgent, Recording
from kvweave.transport.agent_data import AgentData


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.make(EngineMemory(CacheShape(512, 2)).layout)


def test_every_rank_has_a_name_and_regions_of_its_own(recording: Recording) -> None:
    (data,) = (AgentData.decode(agent) for agent in recording.agents)
    assert data.name == "bench rank 0" and len(data.regions) == 61
    assert PlaybackAgent(recording).add_remote_agent(data.payload) == b"bench rank 0"


def test_a_read_brings_the_probe(recording: Recording) -> None:
    agent: Any = PlaybackAgent(recording)
    landing = np.zeros(len(recording.probe), np.uint8)
    rows = agent.get_xfer_descs(np.array([[landing.ctypes.data, landing.nbytes, 0]], np.uint64), "DRAM")
    handle = agent.initialize_xfer("READ", rows, rows, "bench rank 0")
    assert agent.transfer(handle) == agent.check_xfer_state(handle) == "DONE"
    assert landing.tobytes() == recording.probe


def test_other_calls_do_nothing(recording: Recording) -> None:
    agent: Any = PlaybackAgent(recording)
    assert agent.register_memory([], "DRAM") is None and agent.get_new_notifs() == {}
