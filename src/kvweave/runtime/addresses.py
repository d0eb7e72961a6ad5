"""Which hosts an engine talks to: loopback always, others only when they are named.

A peer is named as ``host:port`` (handshaken at start), as ``host``, or as a network such as ``10.1.0.0/16``; its key's
name may stand before it: ``prefill@10.1.0.0/16``. Names are compared as text and are never looked up, so what an API
client writes cannot cause a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from kvweave.errors import ConfigurationError

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class PeerList:
    """The allowed hosts; ``addresses`` are those with a port, ``keys`` names of keys by address, host or network."""

    addresses: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    keys: Mapping[str | Network, str] = field(default_factory=dict)

    @staticmethod
    def parse(peers: Iterable[str]) -> PeerList:
        """The list of a configuration; raises ``ConfigurationError`` naming the entry that cannot be read.

        >>> PeerList.parse(["10.0.0.7:5600", "10.1.0.0/16"]).allows("10.1.2.3")
        True
        """
        addresses: list[str] = []
        hosts: set[str] = set()
        networks: list[Network] = []
        keys: dict[str | Network, str] = {}
        for entry in peers:
            key, _, peer = entry.rpartition("@")
            place: str | Network
            if "/" in peer:
                place = _network(peer)
                networks.append(place)
            elif _has_port(peer):
                host, port = split_address(peer)
                place = join_address(host, port)
                addresses.append(place)
                hosts.add(host)
            else:
                place = peer.strip("[]")
                hosts.add(place)
            if key:
                keys[place] = key
        return PeerList(tuple(addresses), frozenset(hosts), tuple(networks), keys)

    def allows(self, host: str) -> bool:
        """Whether a connection to or from this host is allowed."""
        if host in self.hosts or is_loopback(host):
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self.networks)

    def key_name(self, address: str) -> str | None:
        """The name of the key that stands before this address, its host, or its network; None when none does.

        >>> PeerList.parse(["prefill@10.1.0.0/16", "10.2.0.1"]).key_name("10.1.2.3:5600")
        'prefill'
        """
        host, _ = split_address(address)
        stated = self.keys.get(address) or self.keys.get(host)
        if stated is not None:
            return stated
        try:
            number = ip_address(host)
        except ValueError:
            return None
        return next((self.keys[held] for held in self.networks if number in held and held in self.keys), None)

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
