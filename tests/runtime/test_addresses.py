"""Who may be talked to: loopback, and what is named."""

from __future__ import annotations

import pytest

from kvweave.errors import ConfigurationError
from kvweave.runtime.addresses import PeerList, is_loopback, join_address, split_address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_always_allowed(host: str) -> None:
    assert is_loopback(host)
    assert PeerList.parse([]).allows(host)


@pytest.mark.parametrize("host", ["10.0.0.7", "10.1.200.3", "fe80::1", "kv-prefill-0"])
def test_named_hosts_and_networks_are_allowed(host: str) -> None:
    assert PeerList.parse(["10.0.0.7:5600", "10.1.0.0/16", "[fe80::1]:5600", "kv-prefill-0"]).allows(host)


@pytest.mark.parametrize(
    "host", ["10.0.0.8", "10.2.0.1", "kv-prefill-1", "kv-prefill-0.example.org", "", "localhost.example.org"]
)
def test_other_hosts_are_not(host: str) -> None:
    assert not PeerList.parse(["10.0.0.7:5600", "10.1.0.0/16", "kv-prefill-0"]).allows(host)


def test_peers_with_a_port_are_those_to_shake_hands_with() -> None:
    peers = PeerList.parse(["10.0.0.7:5600", "10.0.0.8", "[::1]:7", "10.1.0.0/16"])
    assert peers.addresses == ("10.0.0.7:5600", "[::1]:7")
    assert peers.names_somebody
    assert not PeerList.parse([]).names_somebody


@pytest.mark.parametrize("peer", ["10.0.0.0/99", "host/24", "host:port", "host:99999", ":5600"])
def test_peer_that_cannot_be_read_is_named(peer: str) -> None:
    with pytest.raises(ConfigurationError, match=peer):
        PeerList.parse([peer])


@pytest.mark.parametrize("address", ["10.0.0.7:5600", "[::1]:0", "localhost:65535"])
def test_address_survives_splitting(address: str) -> None:
    assert join_address(*split_address(address)) == address


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "::1:5600", "host:-1", "host:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        split_address(address)
