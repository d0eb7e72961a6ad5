"""Peers that were met are copied from, all others and other memory are NIXL's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.transport.neighbours import PROBE, ourselves

from kvweave.testing.transport_contract import fresh_name
from kvweave.transport.copying import CopiedPiece, most_helpers
from kvweave.transport.neighbour import Neighbour
from kvweave.transport.rows import ReadRows, single

host_agent = pytest.importorskip("kvweave.transport.host_agent", exc_type=ImportError)


@pytest.fixture
def agent() -> Iterator[object]:
    made = host_agent.HostAgent(fresh_name("agent"))
    yield made
    made.close()


def rows(memory: str = "DRAM") -> ReadRows:
    return ReadRows(*(single(PROBE.ctypes.data) for _ in "st"), single(16), source_memory=memory)


def test_a_peer_that_was_met_is_copied_from_until_it_is_removed(agent: object) -> None:
    agent.meet(ourselves())
    assert agent.copies("ourselves", rows()) and not agent.copies("ourselves", rows("VRAM"))
    assert (agent.helpers("ourselves"), agent.helpers("elsewhere")) == (most_helpers(), 0)
    landing = np.zeros(16, np.uint8)
    piece = agent.prepare("ourselves", ReadRows(single(PROBE.ctypes.data), single(landing.ctypes.data), single(16)))
    assert isinstance(piece, CopiedPiece)
    agent.start(piece)
    assert agent.is_over(piece)
    np.testing.assert_array_equal(landing, PROBE)
    agent.release(piece)
    agent.remove("ourselves")
    assert not agent.copies("ourselves", rows())


def test_who_cannot_be_copied_from_is_not_met(agent: object) -> None:
    agent.meet(Neighbour("elsewhere", 2**31 - 1, PROBE.ctypes.data, PROBE.tobytes()))
    assert not agent.copies("elsewhere", rows())
