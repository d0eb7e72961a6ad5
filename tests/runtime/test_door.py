"""The door: who is not allowed is turned away before a byte of his is taken, or one of ours is sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import ControlClient, ControlServer
from kvweave.runtime.keys import CurveKeys
from tests.runtime.keyring import PAIRS, keys_of
from tests.runtime.pair import wait_until


@contextmanager
def ends(server_keys: CurveKeys | None, client_keys: CurveKeys | None) -> Iterator[tuple[ControlServer, ControlClient]]:
    server, client = ControlServer("127.0.0.1:0", PeerList(), None, server_keys), ControlClient(PeerList(), client_keys)
    try:
        yield server, client
    finally:
        client.close()
        server.close()


def test_allowed_key_is_let_in_and_known() -> None:
    with ends(keys_of("prefill", "decode"), keys_of("decode", "prefill")) as (server, client):
        client.send(server.address, b"question")
        found = []
        wait_until(lambda: bool(found.extend(server.receive()) or found))
        caller, data = found[0]
        assert (caller.key, caller.identity, data) == (PAIRS["decode"][0], PAIRS["decode"][0], b"question")
        assert client.key_of(server.address) == PAIRS["prefill"][0]


STRANGERS = [
    pytest.param(keys_of("prefill", "decode"), keys_of("stranger", "prefill"), PAIRS["stranger"][0], id="other key"),
    pytest.param(keys_of("prefill", "decode"), None, "one side has keys", id="no key"),
    pytest.param(keys_of("prefill", "decode"), keys_of("decode", "other"), "another key", id="key of another server"),
    pytest.param(None, keys_of("decode", "prefill"), "keys", id="server without keys"),
]


@pytest.mark.parametrize(("server_keys", "client_keys", "text"), STRANGERS)
def test_stranger_is_told_why_and_not_heard(server_keys: object, client_keys: object, text: str) -> None:
    with ends(server_keys, client_keys) as (server, client):
        client.send(server.address, b"question")
        heard, failures = [], []
        wait_until(lambda: bool(heard.extend(server.receive()) or failures.extend(client.failures()) or failures))
        assert heard == []
        assert failures[0][0] == server.address and text in " ".join(reason for _, reason in failures)


def test_stranger_is_named_with_what_to_do() -> None:
    with ends(keys_of("prefill", "decode"), keys_of("stranger", "prefill")) as (server, client):
        client.send(server.address, b"question")
        found = []
        wait_until(lambda: bool(server.receive() or found.extend(server.take_turned_away()[0]) or found))
        assert (found[0].key, found[0].reason) == (PAIRS["stranger"][0], "unknown_key")
        assert "allowed_keys" in found[0].remedy


def test_raw_connection_gets_a_greeting_and_nothing_else() -> None:
    with (
        ends(keys_of("prefill", "decode"), None) as (server, _),
        socket.create_connection(("127.0.0.1", server.port)) as raw,
    ):
        raw.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + bytes(48))
        raw.settimeout(20)
        received = b""
        while part := raw.recv(4096):
            server.receive()
            received += part
        assert len(received) <= 64


def test_host_that_is_not_allowed_is_turned_away() -> None:
    import zmq

    from kvweave.runtime.door import Door

    context = zmq.Context()
    door = Door(context, PeerList.parse(["10.0.0.0/8"]), None)
    caller = context.socket(zmq.REQ)
    caller.connect("inproc://zeromq.zap.01")
    for host, status in ((b"10.1.2.3", b"200"), (b"10.1.2.3", b"200"), (b"192.168.0.1", b"400"), (b"::1", b"200")):
        caller.send_multipart([b"1.0", b"1", b"kvweave", host, b"", b"NULL"])
        wait_until(lambda: door.answer() or caller.poll(0))
        assert caller.recv_multipart()[2] == status
    assert [away.reason for away in door.take_turned_away()[0]] == ["unknown_host"]
    door.close()
    context.destroy(linger=0)
