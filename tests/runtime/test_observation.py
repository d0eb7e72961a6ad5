"""Observers: they learn how an engine is laid out, and get no agent data."""

from __future__ import annotations

import pytest

import kvweave as kw
from kvweave.errors import TransferRefused, TransportError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.messages import EngineRole, HandshakeReply, HandshakeRequest
from kvweave.runtime import observe
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import ControlClient
from tests.runtime.keyring import keys_of
from tests.runtime.pair import joined, wait_until
from tests.soak.peers import silent_address

BOTH = (keys_of("prefill", "decode", "other"), keys_of("decode", "prefill", "other"))


@pytest.mark.parametrize("keys", [(None, None), BOTH], ids=["without keys", "with keys"])
def test_both_engines_of_a_pair_describe_themselves(keys: tuple) -> None:
    own = None if keys[0] is None else keys_of("other", "prefill", "decode")
    with joined(keys=keys, decode_bind="127.0.0.1:0") as pair:
        peers = PeerList.parse([f"prefill@{pair.prefill.address}", f"decode@{pair.decode.address}"])
        source, target = (observe(address, peers, own) for address in peers.addresses)
        assert (source.engine_id, target.engine_id) == (pair.prefill.engine_id, pair.decode.engine_id)
        assert (source.layout.ranks, target.layout.ranks) == (pair.source.layout.ranks, pair.target.layout.ranks)
        assert kw.check_compatibility(source.layout, target.layout) == []


def test_observer_gets_no_agent_data_and_may_claim_nothing() -> None:
    client = ControlClient()
    with joined() as pair:
        client.send(pair.prefill.address, encode(HandshakeRequest(1, "observer", EngineRole.OBSERVER, 1)))
        found: list = []
        wait_until(lambda: bool(found.extend(client.receive()) or found))
        reply = decode(found[0][1])
        assert isinstance(reply, HandshakeReply) and reply.agents == ()
        assert pair.prefill.metrics().total("handshakes") == 0
    client.close()


def test_nobody_there_is_said() -> None:
    with silent_address() as silent, pytest.raises(TransportError, match="is it an engine"):
        observe(silent, PeerList(), seconds=0.2)


def test_refusal_has_its_reason() -> None:
    with joined(keys=BOTH) as pair, pytest.raises(TransportError, match="allowed_keys"):
        observe(pair.prefill.address, PeerList(), keys_of("stranger", "prefill"))
    with joined(decode_bind="127.0.0.1:0") as pair:
        client = ControlClient()
        client.send(str(pair.decode.address), encode(HandshakeRequest(1, "decode", EngineRole.DECODE, 1)))
        found: list = []
        wait_until(lambda: bool(found.extend(client.receive()) or found))
        assert "observers" in decode(found[0][1]).text
        client.close()


def test_refused_observer_learns_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvweave.protocol.messages import HandshakeRefused, RefusalReason
    from kvweave.runtime.observation import _judge

    refusal = encode(HandshakeRefused(1, RefusalReason.TOO_MANY, "too many handshakes"))
    with pytest.raises(TransferRefused, match="too many"):
        _judge("10.0.0.1:5", refusal, "")
