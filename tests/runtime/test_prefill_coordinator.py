"""The prefill coordinator driven by hand: commands come before messages, and it stays awake while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from kvweave.protocol.codec import encode
from kvweave.protocol.effects import ReleaseReason
from kvweave.protocol.messages import Acknowledge, Claim, EngineRole, HandshakeRequest, Heartbeat, Incompatible, Problem
from kvweave.protocol.sides import PrefillSide
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.control import Caller, ControlClient, ControlServer
from kvweave.runtime.metrics import Recorder
from kvweave.runtime.polling import Activity
from kvweave.runtime.prefill_coordinator import GREETED_SECONDS, Offer, PrefillCoordinator, Released, Withdraw
from tests.protocol.examples import ENGINE, key, reference, small_layout
from tests.runtime.pair import VirtualClock, wait_until


class Joined:
    """A coordinator without workers, and a client that says what a decode engine would."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = ControlServer("127.0.0.1:0", PeerList())
        self.client = ControlClient()
        self.recorder = Recorder()
        self.side = PrefillSide(ENGINE, small_layout(2), [b"a", b"b"], 10.0)
        self.coordinator = PrefillCoordinator(self.side, self.server, [], self.clock, self.recorder)

    def say(self, message: object) -> None:
        self.client.send(self.server.address, encode(message))

    def offer(self) -> Future[Released]:
        announcement: Future[Released] = Future()
        self.coordinator.submit(Offer(reference(), None, announcement))
        return announcement

    def until(self, activity: Activity) -> None:
        wait_until(lambda: self.coordinator.poll() is activity)


@pytest.fixture
def joined() -> Iterator[Joined]:
    made = Joined()
    yield made
    made.client.close()
    made.coordinator.close(None)


def test_it_stays_awake_after_a_handshake_and_while_it_is_read(joined: Joined) -> None:
    released = joined.offer()
    assert joined.coordinator.poll() is Activity.IDLE
    joined.say(HandshakeRequest(1, "decode-1", EngineRole.DECODE, 1))
    joined.until(Activity.SERVING)
    joined.say(Claim(7, ENGINE, key()))
    wait_until(lambda: (joined.coordinator.poll(), joined.side.offers.attended == 1)[1])
    joined.say(Acknowledge(7, key(), (0,)))
    wait_until(lambda: (joined.coordinator.poll(), released.done())[1])
    joined.clock.advance(GREETED_SECONDS)
    joined.until(Activity.IDLE)
    assert released.result().reason is ReleaseReason.ACKNOWLEDGED


def test_it_is_awake_after_a_handshake_until_the_caller_has_its_connections(joined: Joined) -> None:
    joined.say(HandshakeRequest(1, "decode-1", EngineRole.DECODE, 1))
    joined.until(Activity.SERVING)
    joined.say(Heartbeat(()))
    joined.until(Activity.IDLE)
    joined.say(HandshakeRequest(2, "decode-1", EngineRole.DECODE, 1))
    joined.until(Activity.SERVING)
    joined.clock.advance(GREETED_SECONDS)
    joined.until(Activity.IDLE)


def test_reads_that_need_nobody_wake_nobody(joined: Joined) -> None:
    released = joined.offer()
    joined.say(HandshakeRequest(1, "decode-1", EngineRole.DECODE, 1))
    joined.until(Activity.SERVING)
    joined.say(Claim(7, ENGINE, key(), attend=False))
    joined.until(Activity.IDLE)
    assert joined.side.offers.claimant(key()) is not None
    joined.say(Acknowledge(7, key(), (0,)))
    wait_until(lambda: (joined.coordinator.poll(), released.done())[1])


def test_commands_come_before_messages_that_are_there_already(joined: Joined) -> None:
    joined.say(HandshakeRequest(1, "decode-1", EngineRole.DECODE, 1))
    joined.until(Activity.SERVING)
    joined.say(Claim(7, ENGINE, key()))
    assert joined.server.socket.poll(10_000)
    joined.offer()
    joined.coordinator.poll()
    assert joined.side.offers.attended == 1


def test_withdrawal_releases_at_once_what_nobody_reads(joined: Joined) -> None:
    released = joined.offer()
    joined.coordinator.submit(Withdraw(key()))
    joined.coordinator.poll()
    assert released.result(0).reason is ReleaseReason.WITHDRAWN


def test_decode_engine_that_turns_us_down_is_named_with_every_reason(
    joined: Joined, caplog: pytest.LogCaptureFixture
) -> None:
    joined.say(HandshakeRequest(1, "decode-1", EngineRole.DECODE, 1))
    joined.say(Incompatible((Problem("dtype", "float32", "bfloat16", "choose one"), Problem("heads", "2", "4", "no"))))
    wait_until(lambda: (joined.coordinator.poll(), "heads" in caplog.text)[1])
    assert "decode-1" in caplog.text
    assert "float32" in caplog.text


REFUSED = {
    "a handshake of the wrong role": (HandshakeRequest(1, "prefill-2", EngineRole.PREFILL, 1), "role"),
    "a claim of a stranger": (Claim(7, ENGINE, key()), "not_handshaken"),
    "a heartbeat of a stranger": (Heartbeat(()), "not_handshaken"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_every_refusal_is_counted_once_by_its_reason(joined: Joined, refused: str) -> None:
    message, reason = REFUSED[refused]
    joined.say(message)
    wait_until(lambda: (joined.coordinator.poll(), joined.recorder.snapshot().total("refused") > 0)[1])
    assert joined.recorder.snapshot().by_label("refused") == {reason: 1}


def test_answer_to_a_client_that_is_gone_is_counted(joined: Joined) -> None:
    joined.coordinator._receive(
        Caller(b"nobody", "127.0.0.1", ""), encode(HandshakeRequest(1, "decode-1", EngineRole.DECODE, 1))
    )
    assert joined.recorder.snapshot().total("unsent_messages") == 1
