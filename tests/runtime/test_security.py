"""Two engines with keys, and peers that have none, another one, or lie about who they are."""

from __future__ import annotations

import pytest

from kvweave.errors import TransportError
from kvweave.protocol.codec import decode, encode
from kvweave.protocol.messages import (
    Acknowledge,
    ChecksumRequest,
    Claim,
    EngineRole,
    HandshakeRefused,
    HandshakeReply,
    HandshakeRequest,
    Heartbeat,
    Incompatible,
    OfferKey,
    Problem,
    RefusalReason,
    Renew,
)
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import MOST_REQUEST_BYTES, ControlClient
from kvweave.runtime.keys import CurveKeys, fingerprint
from tests.runtime.keyring import PAIRS, keys_of
from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, Pair, joined, wait_until

BOTH = (keys_of("prefill", "decode", "other"), keys_of("decode", "prefill"))


def answer(pair: Pair, keys: CurveKeys | None, engine_id: str) -> object:
    """What the prefill engine answers to a handshake under this name with these keys."""
    client = ControlClient(PeerList(), keys)
    client.send(pair.prefill.address, encode(HandshakeRequest(1, engine_id, EngineRole.DECODE, 1)))
    found: list[object] = []
    wait_until(lambda: bool(found.extend([*client.receive(), *client.failures()]) or found))
    client.close()
    _, data = found[0]
    return decode(data) if isinstance(data, bytes) else data


def test_engines_with_keys_work_together() -> None:
    with joined(keys=BOTH) as pair:
        pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert pair.wrong_bytes() == 0
        assert pair.prefill.engine_id.endswith(fingerprint(PAIRS["prefill"][0]))
        assert pair.decode.engine_id.endswith(fingerprint(PAIRS["decode"][0]))


@pytest.mark.parametrize("keys", [None, keys_of("stranger", "prefill")], ids=["no key", "unknown key"])
def test_stranger_gets_no_byte_of_agent_data(keys: CurveKeys | None) -> None:
    with joined(keys=BOTH) as pair:
        assert isinstance(answer(pair, keys, "decode"), str)
        assert pair.prefill.metrics().total("handshakes") == 0


def test_engine_cannot_speak_under_the_name_of_another() -> None:
    with joined(keys=BOTH) as pair:
        refused = answer(pair, keys_of("other", "prefill"), pair.decode.engine_id)
        assert isinstance(refused, HandshakeRefused)
        assert refused.reason is RefusalReason.WRONG_KEY and pair.decode.engine_id in refused.text
        own = answer(pair, keys_of("other", "prefill"), f"mine.{fingerprint(PAIRS['other'][0])}")
        assert isinstance(own, HandshakeReply) and own.agents


def test_fetch_from_an_engine_with_another_key_fails_with_the_reason() -> None:
    with joined(keys=(keys_of("other", "decode"), BOTH[1])) as pair:
        with pytest.raises(TransportError, match="another key"):
            pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert pair.decode.metrics().total("failed", "peer_lost") == 1


def test_unknown_key_is_counted_on_the_prefill_side() -> None:
    with joined(keys=(keys_of("prefill", "other"), BOTH[1])) as pair:
        with pytest.raises(TransportError, match="allowed_keys"):
            pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        wait_until(lambda: pair.prefill.metrics().total("turned_away", "unknown_key") >= 1)


LIES = {
    "acknowledgements of an offer that another has": lambda offer: Acknowledge(5, offer, (0,)),
    "a claim of an offer that another has": lambda offer: Claim(5, "prefill", offer),
    "a renewal of an offer that another has": lambda offer: Renew(5, 1, "prefill", offer),
    "heartbeats for offers that never were": lambda _: Heartbeat(tuple(OfferKey(f"r{n}", n) for n in range(1000))),
    "requests for checksums": lambda offer: ChecksumRequest(5, offer, 0, 0, (0,), (1,)),
    "mismatches without end": lambda _: Incompatible(
        tuple(Problem("x" * 2000, "y", "z", "\n\x1b") for _ in range(100))
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_peer_with_a_key_that_lies_can_harm_nobody_else(lie: str) -> None:
    liar = ControlClient(PeerList(), keys_of("other", "prefill"))
    with joined(keys=BOTH) as pair:
        held = pair.offer("held")
        fetch = pair.decode.hold(held)
        own_id = f"liar.{fingerprint(PAIRS['other'][0])}"
        liar.send(pair.prefill.address, encode(HandshakeRequest(1, own_id, EngineRole.DECODE, 4096)))
        for _ in range(300):
            liar.send(pair.prefill.address, encode(LIES[lie](held.offer)))
        liar.send(pair.prefill.address, b"KVWV\x00\x01" + bytes(100_000))
        wait_until(lambda: (liar.receive(), pair.prefill.metrics().total("malformed_messages"))[1] == 1)
        pair.decode.begin(fetch, held, TARGET_BLOCKS)
        fetch.result(PATIENCE)
        pair.decode.fetch(pair.offer("next"), TARGET_BLOCKS).result(PATIENCE)
        assert pair.wrong_bytes() == 0
    liar.close()


def test_huge_message_ends_its_own_connection_only() -> None:
    liar = ControlClient(PeerList(), keys_of("other", "prefill"))
    with joined(keys=BOTH) as pair:
        for _ in range(5):
            liar.send(pair.prefill.address, bytes(MOST_REQUEST_BYTES + 1))
            pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert pair.prefill.metrics().total("malformed_messages") == 0
    liar.close()
