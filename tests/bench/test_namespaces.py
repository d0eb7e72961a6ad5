"""Hosts on this machine: what they need is named, and nothing of them is left behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from bench.namespaces import CannotRun, Network, why_not


@pytest.fixture
def network() -> Iterator[Network]:
    """Where this machine lets us have one."""
    made = Network()
    try:
        made.__enter__()
    except CannotRun as reason:
        pytest.skip(str(reason))
    yield made
    made.__exit__()


def names(*command: str) -> str:
    return subprocess.run(["ip", *command], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("change", "needed"),
    [(("os.geteuid", lambda: 1000), "need root"), (("shutil.which", lambda name: None), "install iproute2")],
    ids=["another user", "no iproute2"],
)
def test_what_is_needed_is_named(change: tuple[str, object], needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(*change)
    assert needed in str(why_not())
    with pytest.raises(CannotRun, match=needed):
        Network().__enter__()


def test_hosts_have_addresses_on_one_bridge_until_the_network_is_left(network: Network) -> None:
    hosts = [network.add("limited", 100), network.add("other")]
    for host in hosts:
        (device,) = json.loads(names("-j", "-n", host.name, "address", "show", "eth0"))
        assert [found["local"] for found in device["addr_info"] if found["family"] == "inet"] == [host.address]
    assert len({host.address for host in hosts}) == 2
    network.__exit__()
    assert not any(host.name in names("netns") for host in hosts)
    assert network._prefix not in names("link")


def test_processes_end_with_their_network(network: Network) -> None:
    process = network.start(network.add("host"), "http.server", "0")
    assert process.poll() is None
    network.__exit__()
    assert process.returncode is not None
