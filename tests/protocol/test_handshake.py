"""Handshakes: one round trip, everything checked in order, every reason said, bounded in time."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kvweave.core.layout import EngineLayout
from kvweave.errors import LocalProtocolError, Mismatch
from kvweave.protocol.effects import ConnectPeer, DropPeer, Greeted, PeerFailed, PeerLost, PeerReady, Send
from kvweave.protocol.handshake import MOST_GUESTS, MOST_GUESTS_EACH, PeerBook, Reception
from kvweave.protocol.messages import (
    EngineRole,
    HandshakeRefused,
    HandshakeReply,
    HandshakeRequest,
    Incompatible,
    RankAgent,
    RefusalReason,
)
from kvweave.protocol.offer import Guest
from kvweave.protocol.states import PeerState
from tests.protocol.examples import ADDRESS, ENGINE, TIMING, messages, of_type, small_layout, small_model

SOURCE = small_layout(4)
REQUEST = HandshakeRequest(1, "decode-1", EngineRole.DECODE, 2)
PROBLEM = Mismatch("dtype", "float32", "bfloat16", "choose one")


def reception(layout: EngineLayout = SOURCE) -> Reception:
    return Reception(ENGINE, layout, [b"agent %d" % rank for rank in range(len(layout.ranks))], 30.0)


def reply_to(request: HandshakeRequest, layout: EngineLayout = SOURCE) -> HandshakeReply:
    return messages(reception(layout).receive(100.0, "a", request))[0]


@pytest.fixture
def book() -> PeerBook:
    """Two decode ranks that asked the peer at 100 s."""
    made = PeerBook("decode-1", small_layout(2), TIMING)
    assert made.want(100.0, ADDRESS) == (Send(ADDRESS, REQUEST),)
    return made


@pytest.fixture
def ready(book: PeerBook) -> PeerBook:
    book.receive(100.1, ADDRESS, reply_to(REQUEST))
    book.connected(ADDRESS, 1, 0)
    book.connected(ADDRESS, 1, 1)
    return book


def test_reply_holds_every_ranks_agent_data_whatever_their_number() -> None:
    effects = reception().receive(100.0, "a", REQUEST)
    assert Greeted("decode-1") in effects
    assert [agent.data for agent in messages(effects)[0].agents] == [b"agent 0", b"agent 1", b"agent 2", b"agent 3"]


def test_reply_holds_the_wanted_ranks_alone() -> None:
    reply = reply_to(msgspec.structs.replace(REQUEST, ranks=(1, 3)))
    assert [agent.rank for agent in reply.agents] == [1, 3]


def test_guest_is_known_by_its_connection() -> None:
    made = reception()
    made.receive(100.0, "a", REQUEST)
    assert made.guest(100.0, "a") == Guest("decode-1", 2)
    assert made.guest(100.0, "b") is None


def test_guests_that_come_and_go_do_not_fill_memory() -> None:
    made = reception()
    for connection in range(MOST_GUESTS + 10):
        made.receive(100.0, connection, REQUEST)
        made.guest(100.0, 0)
    assert len(made) == MOST_GUESTS
    assert made.guest(100.0, 0) is not None
    assert made.guest(100.0, 1) is None


def test_holder_of_many_connections_drives_out_its_own_alone() -> None:
    agents = [b"agent"] * len(SOURCE.ranks)
    made = Reception(ENGINE, SOURCE, agents, 30.0, holder_of=lambda connection: str(connection)[0])
    made.receive(100.0, "another's", REQUEST)
    for number in range(MOST_GUESTS_EACH + 2):
        made.receive(100.0, f"many {number}", REQUEST)
    assert len(made) == MOST_GUESTS_EACH + 1
    assert made.guest(100.0, "another's") is not None
    assert [made.guest(100.0, f"many {number}") is not None for number in range(3)] == [False, False, True]


def test_guest_that_was_silent_for_several_leases_is_forgotten() -> None:
    made = reception()
    made.receive(100.0, "a", REQUEST)
    made.receive(100.0, "b", REQUEST)
    made.guest(180.0, "a")
    assert made.get_timer() == 220.0
    made.handle_timer(220.0)
    assert (made.guest(220.0, "a"), made.guest(220.0, "b")) == (Guest("decode-1", 2), None)


def test_closing_engine_turns_everybody_away() -> None:
    made = reception()
    made.close()
    (answer,) = messages(made.receive(100.0, "a", REQUEST))
    assert answer.reason is RefusalReason.CLOSING


def test_prefill_engine_that_asks_a_prefill_engine_is_refused() -> None:
    (answer,) = messages(reception().receive(100.0, "a", msgspec.structs.replace(REQUEST, role=EngineRole.PREFILL)))
    assert answer.reason is RefusalReason.ROLE


def test_description_that_fits_no_message_is_refused_at_the_start() -> None:
    with pytest.raises(LocalProtocolError, match="fit a handshake"):
        Reception(ENGINE, SOURCE, [bytes(20 << 20)] * 4, 30.0)


def test_wanting_again_asks_once(book: PeerBook) -> None:
    assert book.want(101.0, ADDRESS) == ()
    assert (len(book), book.opening) == (1, 1)


def test_handshake_that_is_not_answered_is_repeated_ever_more_rarely(book: PeerBook) -> None:
    moments = [now / 10 for now in range(1000, 1200) if messages(book.handle_timer(now / 10)) == [REQUEST]]
    assert moments == [101.0, 103.0, 107.0, 115.0]


def test_peer_that_does_not_know_the_connection_any_more_is_lost(ready: PeerBook) -> None:
    stranger = HandshakeRefused(0, RefusalReason.NOT_HANDSHAKEN, "who are you")
    assert ready.receive(101.0, ADDRESS, stranger) == (DropPeer(ADDRESS), PeerLost(ADDRESS, "who are you"))
    assert ready.receive(101.0, ADDRESS, stranger) == ()


def test_peer_is_ready_when_every_rank_is_warm(book: PeerBook) -> None:
    (connect,) = book.receive(100.1, ADDRESS, reply_to(REQUEST))
    assert isinstance(connect, ConnectPeer)
    assert connect.agents == (b"agent 0", b"agent 1", b"agent 2", b"agent 3")
    assert connect.layout.ranks == SOURCE.ranks
    assert book.connected(ADDRESS, 1, 1) == ()
    assert book.connected(ADDRESS, 1, 1) == ()
    assert book.connected(ADDRESS, 1, 0) == (PeerReady(ADDRESS, ENGINE, 30.0),)
    assert book.get_timer() is None


@pytest.mark.parametrize("address", [ADDRESS, "10.0.0.9:1"], ids=["another attempt", "another address"])
def test_reply_to_nothing_open_changes_nothing(book: PeerBook, address: str) -> None:
    assert book.receive(100.1, address, reply_to(msgspec.structs.replace(REQUEST, attempt=9))) == ()
    assert book.connected(address, 9, 0) == ()
    assert book.not_connected(100.2, address, 9, "no") == ()


def test_repeated_reply_changes_nothing(ready: PeerBook) -> None:
    assert ready.receive(100.2, ADDRESS, reply_to(REQUEST)) == ()
    assert ready.state(ADDRESS) is PeerState.READY


def test_misfit_says_every_reason_to_both_sides_before_agent_data_is_touched(book: PeerBook) -> None:
    other = small_layout(4, small_model(layers=1, heads=8, head_size=16))
    effects = book.receive(100.1, ADDRESS, reply_to(REQUEST, other))
    (failed,) = of_type(effects, PeerFailed)
    assert len(failed.problems) >= 2
    (told,) = messages(effects)
    assert isinstance(told, Incompatible)
    assert len(told.problems) == len(failed.problems)
    assert of_type(effects, ConnectPeer) == []


def test_fine_tune_of_the_same_shape_is_another_model() -> None:
    book = PeerBook("decode-1", small_layout(2, small_model(fingerprint="b")), TIMING)
    book.want(100.0, ADDRESS)
    effects = book.receive(100.1, ADDRESS, reply_to(REQUEST, small_layout(4, small_model(fingerprint="a"))))
    assert [problem.field for problem in of_type(effects, PeerFailed)[0].problems] == ["model"]


def test_misfit_is_repeated_without_asking_and_asked_again_later(book: PeerBook) -> None:
    book.misfit(100.1, ADDRESS, [PROBLEM])
    assert book.state(ADDRESS) is PeerState.INCOMPATIBLE
    assert of_type(book.want(105.0, ADDRESS), PeerFailed)[0].problems == (PROBLEM,)
    book.handle_timer(110.1)
    assert [type(message) for message in messages(book.want(111.0, ADDRESS))] == [HandshakeRequest]


def test_rank_that_cannot_plan_makes_the_peer_a_misfit(book: PeerBook) -> None:
    book.receive(100.1, ADDRESS, reply_to(REQUEST))
    effects = book.not_connected(100.2, ADDRESS, 1, "no plan", [PROBLEM])
    assert of_type(effects, PeerFailed)[0].problems == (PROBLEM,)


@pytest.mark.parametrize(
    "reply",
    [
        HandshakeReply(1, ENGINE, 30.0, b"nonsense", ()),
        msgspec.structs.replace(reply_to(REQUEST), agents=(RankAgent(0, b"a"),)),
        msgspec.structs.replace(reply_to(REQUEST), agents=(RankAgent(0, b"a"),) * 4),
        HandshakeRefused(1, RefusalReason.CLOSING, "closing"),
    ],
    ids=["no description", "one rank of four", "one rank four times", "refused"],
)
def test_reply_that_is_of_no_use_loses_the_peer(book: PeerBook, reply: object) -> None:
    effects = book.receive(100.1, ADDRESS, reply)
    assert [type(effect) for effect in effects] == [DropPeer, PeerFailed]
    assert book.state(ADDRESS) is PeerState.UNKNOWN


def test_silent_peer_is_given_up_in_bounded_time(book: PeerBook) -> None:
    assert of_type(book.handle_timer(119.9), PeerFailed) == []
    effects = book.handle_timer(120.0)
    assert of_type(effects, PeerFailed)[0].text.startswith(ADDRESS)
    assert len(book) == 0


def test_connection_that_stays_cold_is_given_up_in_the_same_time(book: PeerBook) -> None:
    book.receive(119.0, ADDRESS, reply_to(REQUEST))
    assert of_type(book.handle_timer(120.0), PeerFailed) != []


def test_lost_peer_is_dropped_and_may_come_back(ready: PeerBook) -> None:
    assert ready.lose(101.0, ADDRESS, "gone") == (DropPeer(ADDRESS), PeerLost(ADDRESS, "gone"))
    assert ready.lose(101.0, ADDRESS, "gone") == ()
    assert messages(ready.want(102.0, ADDRESS))[0].attempt == 2


def test_named_peer_is_asked_again_after_every_loss() -> None:
    book = PeerBook("decode-1", small_layout(2), TIMING)
    book.name(100.0, ADDRESS)
    book.handle_timer(120.0)
    assert messages(book.handle_timer(129.9)) == []
    assert messages(book.handle_timer(130.0))[0].attempt == 2


def test_memory_is_flat_over_many_peers() -> None:
    book = PeerBook("decode-1", small_layout(2), TIMING)
    for port in range(1000):
        address = f"127.0.0.1:{port + 1}"
        attempt = messages(book.want(100.0, address))[0].attempt
        book.receive(100.0, address, replace_attempt(attempt))
        book.lose(100.0, address, "gone")
    assert (len(book), book.get_timer()) == (0, None)


def replace_attempt(attempt: int) -> HandshakeReply:
    return msgspec.structs.replace(reply_to(REQUEST), attempt=attempt)


def test_order_of_checks_is_description_then_fit_then_agents(book: PeerBook) -> None:
    other = small_layout(4, replace(small_model(heads=8)))
    effects = book.receive(100.1, ADDRESS, msgspec.structs.replace(reply_to(REQUEST, other), agents=()))
    assert of_type(effects, PeerFailed)[0].problems != ()
