"""The desk of a decode engine: a description for observers, nothing for anybody else."""

from __future__ import annotations

import pytest

from kvweave.protocol.codec import decode, encode
from kvweave.protocol.messages import Claim, EngineRole, HandshakeReply, HandshakeRequest, OfferKey
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import ControlClient, ControlServer
from kvweave.runtime.desk import MOST_BYTES, Desk
from kvweave.runtime.metrics import Recorder
from tests.protocol.examples import small_layout
from tests.runtime.pair import wait_until


def test_observer_is_answered_and_others_are_counted() -> None:
    server, client, recorder = ControlServer("127.0.0.1:0", PeerList()), ControlClient(), Recorder()
    desk = Desk(server, "decode-1", small_layout(2), recorder)
    for message in (Claim(1, "e", OfferKey("r", 1)), HandshakeRequest(7, "me", EngineRole.OBSERVER, 1)):
        client.send(server.address, encode(message))
    found: list = []
    wait_until(lambda: (desk.poll(0.0), bool(found.extend(client.receive()) or found))[1])
    reply = decode(found[0][1])
    assert isinstance(reply, HandshakeReply)
    assert (reply.engine_id, reply.attempt, reply.agents) == ("decode-1", 7, ())
    assert recorder.snapshot().total("malformed_messages") == 1
    assert len(desk.sockets()) == 2
    client.close()
    desk.close()


def test_answers_are_rationed() -> None:
    server, client = ControlServer("127.0.0.1:0", PeerList()), ControlClient()
    desk = Desk(server, "decode-1", small_layout(2), Recorder())
    desk._allowance.take(0.0, "127.0.0.1", MOST_BYTES)
    client.send(server.address, encode(HandshakeRequest(1, "me", EngineRole.OBSERVER, 1)))
    client.send(server.address, b"the last one")
    wait_until(lambda: (desk.poll(0.0), desk._recorder.snapshot().total("malformed_messages"))[1] == 1)
    assert client.receive() == []
    client.close()
    desk.close()


@pytest.mark.parametrize("role", [EngineRole.DECODE, EngineRole.PREFILL])
def test_other_roles_are_refused(role: EngineRole) -> None:
    server, client = ControlServer("127.0.0.1:0", PeerList()), ControlClient()
    desk = Desk(server, "decode-1", small_layout(2), Recorder())
    client.send(server.address, encode(HandshakeRequest(1, "me", role, 1)))
    found: list = []
    wait_until(lambda: (desk.poll(0.0), bool(found.extend(client.receive()) or found))[1])
    assert decode(found[0][1]).text == f"engine decode-1 serves observers here, not {role.value} engines"
    client.close()
    desk.close()
