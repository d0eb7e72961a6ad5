"""Which way a peer's reads take, by what is known of it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.transport.memory_agent import MemoryAgent
from tests.transport.neighbours import ourselves

from kvweave.transport.choice import Choice
from kvweave.transport.known_peer import KnownPeer
from kvweave.transport.landing import Landing
from kvweave.transport.rates import Cost, Rates
from kvweave.transport.read_source import ReadSource
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows, single
from kvweave.transport.staging_ring import StagingRing

DEAR, CHEAP = Cost(1.0, 0.0, 0.0), Cost(0.001, 0.0, 0.0)
ROWS = ReadRows(single(1), single(2), single(3))


@pytest.fixture
def peer() -> KnownPeer:
    """One with a ring that nobody has measured."""
    source = ReadSource("peer", StagingRing(b"").place, Landing(), MemoryAgent(), lambda name, error: None)
    return KnownPeer(b"", RegionTable(), ourselves(), proven=True, staged=source)


def test_the_cheaper_way_is_taken_once_both_are_measured(peer: KnownPeer) -> None:
    assert not peer.prefers_staged(ROWS, "auto", 0.0)
    peer.choice = Choice(Rates(DEAR, CHEAP, 1 << 20))
    assert peer.prefers_staged(ROWS, "auto", 0.0)
    peer.choice = Choice(Rates(CHEAP, DEAR, 1 << 20))
    assert not peer.prefers_staged(ROWS, "auto", 0.0)


def test_what_cannot_be_gathered_is_never_staged(peer: KnownPeer) -> None:
    assert peer.prefers_staged(ROWS, "always", 0.0)
    device = ReadRows(single(1), single(2), single(3), target_memory="VRAM")
    none = ReadRows(*(np.zeros(0, np.uint64) for _ in range(3)))
    assert not any(peer.prefers_staged(rows, "always", 0.0) for rows in (device, none))
    peer.staged = None
    assert not peer.prefers_staged(ROWS, "always", 0.0)
    assert peer.settled()
