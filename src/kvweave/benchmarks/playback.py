"""A peer of many ranks that is not there: agent data with their names, and an agent that answers as if they lived.

One transport of this machine describes itself; every rank gets its description under a name and with regions of its
own. The playback's methods have NIXL's names.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvweave.core.layout import EngineLayout
from kvweave.transport.agent_data import AgentData
from kvweave.transport.regions import RegionTable

_BETWEEN = b"\0"


@dataclass(frozen=True, slots=True)
class Recording:
    """Agent data of every rank, and the probe that all of them answer."""

    agents: tuple[bytes, ...]
    probe: bytes

    @staticmethod
    def make(prefill: EngineLayout) -> Recording:
        """Of every rank of an engine."""
        from kvweave.transport.nixl import NixlTransport

        transport = NixlTransport("bench recorded")
        data = AgentData.decode(transport.agent_data())
        transport.close()
        agents = []
        for number, rank in enumerate(prefill.ranks):
            name, regions = f"bench rank {number}", RegionTable().with_regions(rank.regions)
            payload = name.encode() + _BETWEEN + data.payload
            agents.append(replace(data, name=name, regions=regions, payload=payload).encode())
        return Recording(tuple(agents), data.probe)


class PlaybackAgent:
    """Answers NIXL's calls at once, as if every peer of the recording lived: its probe is where it belongs."""

    def __init__(self, recording: Recording) -> None:
        self._probe = recording.probe

    def add_remote_agent(self, payload: bytes) -> bytes:
        """The peer's name, which the recording wrote before NIXL's own part."""
        return payload.partition(_BETWEEN)[0]

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        """Nobody says anything."""
        return {}

    def get_xfer_descs(self, rows: Any, memory: str) -> Any:
        """The rows themselves."""
        return np.array(rows)

    def initialize_xfer(self, operation: str, target: Any, source: Any, peer: str) -> Any:
        """Where the probe goes."""
        return target

    def transfer(self, handle: Any) -> str:
        """Brings the probe."""
        ctypes.memmove(int(handle[0, 0]), self._probe, len(self._probe))
        return "DONE"

    def check_xfer_state(self, handle: Any) -> str:
        """Everything is over at once."""
        return "DONE"

    def __getattr__(self, name: str) -> Any:
        """Every other call has nothing to do."""
        return _nothing


def _nothing(*arguments: Any, **named: Any) -> None:
    del arguments, named
