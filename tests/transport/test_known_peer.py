"""Which way a peer's reads take, by what is known of it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.transport.memory_agent import MemoryAgent
from tests.transport.neighbours import ourselves

from kvweave.transport.choice import Choice
from kvweave.transport.known_peer import KnownPeer
from kvweave.transport.landing import Landing
from kvweave.transport.piecewise import PiecewiseRead
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


@pytest.mark.parametrize(("memory", "others", "noted"), [("DRAM", 0, True), ("DRAM", 1, False), ("VRAM", 0, False)])
def test_direct_reads_of_main_memory_that_were_alone_are_noted(
    peer: KnownPeer, memory: str, others: int, noted: bool
) -> None:
    """Whether the other one began before it or after it."""
    peer.choice = Choice(Rates(CHEAP, CHEAP, 1 << 20))
    rows = ReadRows(single(1), single(2), single(1 << 20), target_memory=memory)
    for order in (slice(None), slice(None, None, -1)):
        read, *rest = reads = [PiecewiseRead("peer", rows) for _ in range(1 + others)]
        begun: list[PiecewiseRead] = []
        for one in reads[order]:
            one.begin(1.0, begun)
            begun.append(one)
        peer.note(read, 2.0)
        assert (peer.choice.direct.lateness > 1) == noted and len(rest) == others
