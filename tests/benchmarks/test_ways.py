from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.ways import Way, transport_factory
from kvweave.transport.nixl import NixlTransport


def test_every_way_makes_a_transport() -> None:
    for way in Way:
        transport = transport_factory(way)(f"bench {way}")
        assert isinstance(transport, NixlTransport)
        transport.close()
