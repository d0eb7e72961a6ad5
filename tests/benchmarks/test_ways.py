from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.ways import Way, has_choice, transport_factory, ways
from kvweave.transport.nixl import NixlTransport


def test_what_a_user_has_is_always_measured() -> None:
    assert ways()[0] is Way.AUTO and (len(ways()) == len(Way)) is has_choice()


def test_every_way_makes_a_transport() -> None:
    for way in ways():
        transport = transport_factory(way)(f"bench {way}")
        assert isinstance(transport, NixlTransport)
        transport.close()
