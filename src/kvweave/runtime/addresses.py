"""Which hosts an engine talks to: loopback always, others only when they are named.

A peer is named as ``host:port`` (handshaken at start), as ``host``, or as a network such as ``10.1.0.0/16``. Names are
compared as text and are never looked up, so what an API client writes cannot cause a query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from kvweave.errors import ConfigurationError

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class PeerList:
    """The allowed hosts; ``addresses`` are those with a port."""

    addresses: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @staticmethod
    def parse(peers: Iterable[str]) -> PeerList:
        """The list of a configuration; raises ``ConfigurationError`` naming the entry that cannot be read.

        >>> PeerList.parse(["10.0.0.7:5600", "10.1.0.0/16"]).allows("10.1.2.3")
        True
        """
        addresses: list[str] = []
        hosts: set[str] = set()
        networks: list[Network] = []
        for peer in peers:
            if "/" in peer:
                networks.append(_network(peer))
            elif _has_port(peer):
                host, port = split_address(peer)
                addresses.append(join_address(host, port))
                hosts.add(host)
            else:
                hosts.add(peer.strip("[]"))
        return PeerList(tuple(addresses), frozenset(hosts), tuple(networks))

    def allows(self, host: str) -> bool:
        """Whether a connection to or from this host is allowed."""
        if host in self.hosts or is_loopback(host):
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self.networks)

    @property
    def names_somebody(self) -> bool:
        """Whether anything but loopback is allowed."""
        return bool(self.hosts or self.networks)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; raises ``ConfigurationError`` when it is not one.

    >>> split_address("[::1]:5600")
    ('::1', 5600)
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ConfigurationError(f"address: {address!r} is not host:port with a port up to 65535")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _has_port(peer: str) -> bool:
    return (peer.startswith("[") and "]:" in peer) or peer.count(":") == 1


def _network(peer: str) -> Network:
    try:
        return ip_network(peer, strict=False)
    except ValueError as error:
        raise ConfigurationError(f"peers: {peer!r} is not a network: {error}") from error
