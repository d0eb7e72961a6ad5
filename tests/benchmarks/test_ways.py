from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.ways import USUAL, Way, transport_factory
from kvweave.transport.agent_data import AgentData
from kvweave.transport.nixl import NixlTransport


def test_every_way_makes_a_transport() -> None:
    for way in Way:
        transport = transport_factory(way)(f"bench {way}")
        assert isinstance(transport, NixlTransport)
        transport.close()


def test_the_usual_way_is_that_of_a_transport_for_which_nothing_is_set() -> None:
    usual, unset = transport_factory(USUAL)("bench usual"), NixlTransport("bench unset")
    assert (AgentData.decode(usual.agent_data()).ring is None) is (AgentData.decode(unset.agent_data()).ring is None)
    for transport in (usual, unset):
        transport.close()
