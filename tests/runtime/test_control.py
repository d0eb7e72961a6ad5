"""The control channel: real sockets, bounded in every direction, closed to strangers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from kvweave.errors import ConfigurationError
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import MOST_REQUEST_BYTES, Caller, ControlClient, ControlServer
from kvweave.runtime.intake import MOST_HANDLED
from tests.runtime.keyring import keys_of
from tests.runtime.pair import wait_until

NOBODY = PeerList.parse([])


@pytest.fixture
def server() -> Iterator[ControlServer]:
    made = ControlServer("127.0.0.1:0", NOBODY)
    yield made
    made.close()


@pytest.fixture
def client() -> Iterator[ControlClient]:
    made = ControlClient()
    yield made
    made.close()


def received(end: ControlServer | ControlClient) -> list[tuple[object, bytes]]:
    messages: list[tuple[object, bytes]] = []
    wait_until(lambda: bool(messages.extend(end.receive()) or messages))
    return messages


def test_messages_go_both_ways(server: ControlServer, client: ControlClient) -> None:
    assert client.send(server.address, b"question")
    ((connection, data),) = received(server)
    assert data == b"question"
    assert server.send(connection, b"answer")
    assert received(client) == [(server.address, b"answer")]


def test_two_clients_are_two_connections(server: ControlServer, client: ControlClient) -> None:
    other = ControlClient()
    client.send(server.address, b"one")
    other.send(server.address, b"two")
    found: dict[bytes, object] = {}
    wait_until(lambda: (found.update((data, connection) for connection, data in server.receive()), len(found) == 2)[1])
    assert found[b"one"] != found[b"two"]
    other.close()


def test_sending_to_a_connection_that_is_gone_is_no_error(server: ControlServer) -> None:
    assert not server.send(Caller(b"nobody", "127.0.0.1", ""), b"answer")


def test_dropped_address_gets_a_new_connection_with_the_next_message(
    server: ControlServer, client: ControlClient
) -> None:
    client.send(server.address, b"one")
    ((first, _),) = received(server)
    client.drop(server.address)
    client.drop("10.0.0.1:5")
    client.send(server.address, b"two")
    ((second, _),) = received(server)
    assert first != second


def test_too_large_a_message_reaches_nobody_and_ends_its_connection(
    server: ControlServer, client: ControlClient
) -> None:
    client.send(server.address, bytes(MOST_REQUEST_BYTES + 1))
    other = ControlClient()
    other.send(server.address, b"small")
    assert [data for _, data in received(server)] == [b"small"]
    other.close()


def test_messages_of_several_frames_are_dropped(server: ControlServer) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(f"tcp://{server.address}")
    stranger.send_multipart([b"a", b"b"])
    stranger.send(b"alone")
    assert [data for _, data in received(server)] == [b"alone"]
    context.destroy(linger=0)


def test_address_that_cannot_be_reached_is_no_error(client: ControlClient) -> None:
    assert not client.send("no address at all", b"question")


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "10.0.0.7:5600"])
def test_address_open_to_others_needs_named_peers(bind: str) -> None:
    with pytest.raises(ConfigurationError, match="peers="):
        ControlServer(bind, NOBODY)


def test_named_peers_open_it_and_references_name_the_advertised_host() -> None:
    server = ControlServer("0.0.0.0:0", PeerList.parse(["10.0.0.0/8"]), "10.0.0.7")
    assert server.address == f"10.0.0.7:{server.port}"
    server.close()


def test_address_in_use_is_said(server: ControlServer) -> None:
    with pytest.raises(ConfigurationError, match=server.address):
        ControlServer(server.address, NOBODY)


def test_what_to_wait_on_is_known(server: ControlServer, client: ControlClient) -> None:
    assert (len(server.sockets()), len(client.sockets())) == (2, 0)
    client.send(server.address, b"question")
    assert len(client.sockets()) == 1


def test_address_where_nobody_listens_is_unreachable(client: ControlClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    client.send(address, b"question")
    wait_until(lambda: [a for a, _ in client.failures()] == [address])
    client.drop(address)
    assert client.failures() == []


def test_server_that_ends_becomes_unreachable(client: ControlClient) -> None:
    server = ControlServer("127.0.0.1:0", NOBODY)
    client.send(server.address, b"question")
    received(server)
    assert client.failures() == []
    server.close()
    wait_until(lambda: [a for a, _ in client.failures()] == [server.address])


def test_open_address_without_keys_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ControlServer("0.0.0.0:0", PeerList.parse(["10.0.0.0/8"])).close()
    ControlServer("0.0.0.0:0", PeerList.parse(["10.0.0.0/8"]), None, keys_of("prefill", "decode")).close()
    assert [message.count("NO KEYS") for message in caplog.messages] == [1]


def test_flood_of_one_client_leaves_the_others_their_turn(server: ControlServer, client: ControlClient) -> None:
    other = ControlClient()
    for _ in range(5000):
        client.send(server.address, b"flood")
    other.send(server.address, b"quiet")
    rounds = []
    wait_until(lambda: (rounds.append(server.receive()), any(data == b"quiet" for _, data in rounds[-1]))[1])
    assert max(map(len, rounds)) <= MOST_HANDLED + 1
    other.close()
