"""Both sides joined: the whole life of a request, in single faults. The simulation's own tests join them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvweave.protocol.codec import decode
from kvweave.protocol.effects import Drained, Failed, FailureReason, Greeted, Reusable, TurnedDown
from kvweave.protocol.follow_entry import Pursuit
from kvweave.protocol.messages import (
    Acknowledge,
    Claim,
    EngineRole,
    HandshakeRefused,
    HandshakeRequest,
    Heartbeat,
    Incompatible,
    Problem,
    RefusalReason,
    Refused,
    Renew,
)
from kvweave.protocol.order import Order
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.protocol.states import FetchState
from kvweave.protocol.timing import Timing
from kvweave.testing.simulation.scenario import Close, Drain, FailingReads, Place, Progress, Role, Stop
from tests.protocol.examples import (
    ADDRESS,
    ENGINE,
    TARGETS,
    TIMING,
    key,
    messages,
    of_type,
    reference,
    small_layout,
)
from tests.protocol.world import ends, moment, pair, plan

PREFILL, DECODE = Place(Role.PREFILL, 0), Place(Role.DECODE, 0)


def test_an_offer_is_delivered_and_released_once() -> None:
    world = pair()
    world.run()
    assert ends(world) == {"delivered": 1}
    assert world.ledger.counts["released: acknowledged"] == 1
    assert moment(world, "releases") < 1


def test_many_requests_share_one_handshake() -> None:
    world = pair([plan(number) for number in range(20)])
    world.run()
    assert ends(world) == {"delivered": 20}
    assert world.ledger.counts["handshakes"] == 1


def test_resent_reference_is_refused_while_and_after_it_is_fetched() -> None:
    world = pair([plan(resent=(0.01, 5.0))], read_seconds=1.0)
    world.run()
    assert ends(world) == {"delivered": 1, "duplicate": 1, "released": 1}


def test_lease_that_ends_before_the_renewal_arrives_delivers_nothing() -> None:
    """The lease ends at 10 s, a renewal sent at 3.3 arrives at 14.3, blocks are reused at 10, the read ends at 10.4."""
    slow = {Renew: 11.0}

    def delays(source: Place, target: Place, data: bytes) -> Sequence[float]:
        return (slow.get(type(decode(data)), 0.001),)

    world = pair(read_seconds=10.4, delays=delays, timing=Timing(answer_seconds=20, resend_seconds=30))
    world.run()
    assert ends(world) == {"revoked": 1}
    assert world.ledger.counts["blocks reused under a read after their lease"] == 1
    assert moment(world, "releases") < moment(world, "reads ended")


def test_decode_engine_that_was_stopped_past_its_lease_delivers_nothing() -> None:
    world = pair(faults=[Stop(0.5, DECODE, 60.0)], read_seconds=1.0)
    world.run()
    assert list(ends(world).values()) == [1]
    assert "delivered" not in ends(world)


def test_prefill_engine_that_was_stopped_ends_the_lease_before_it_reads_the_renewal() -> None:
    """The claim's answer is on its way when the process stops, and the reads go on without it."""
    timing = Timing(answer_seconds=5, silence_seconds=60)
    world = pair(faults=[Stop(0.2, PREFILL, 30.0)], read_seconds=0.5, timing=timing)
    world.run()
    assert ends(world) == {"delivered": 1}
    world = pair([plan(at=0.3)], faults=[Stop(0.302, PREFILL, 30.0)], read_seconds=0.5)
    world.run()
    assert "delivered" not in ends(world)


def test_long_reads_are_renewed_until_they_end() -> None:
    world = pair(read_seconds=45.0)
    world.run()
    assert ends(world) == {"delivered": 1}
    assert moment(world, "delivers") > 45


def test_reads_that_never_end_are_given_up_within_read_seconds() -> None:
    world = pair(read_seconds=10_000.0)
    world.run()
    assert ends(world) == {"late": 1}
    assert moment(world, "fails") < 121


def test_read_that_fails_is_done_again_from_another_replica() -> None:
    world = pair(faults=[FailingReads(0.0, 5.0, 0, 0), FailingReads(0.0, 5.0, 0, 2)], read_seconds=1.0)
    world.run()
    assert ends(world) == {"delivered": 1}
    assert world.ledger.counts["reads tried again"] > 0


def test_reads_that_fail_from_every_replica_fail_the_fetch_once() -> None:
    world = pair(faults=[FailingReads(0.0, 50.0, 0)], read_seconds=1.0)
    world.run()
    assert ends(world) == {"read_failed": 1}
    assert world.ledger.counts["released: acknowledged"] == 1


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.0015, 0.05, 0.5], ids="{} s".format)
@pytest.mark.parametrize("queue_seconds", [None, 0.3], ids=["at once", "held"])
def test_abort_at_any_point_frees_both_sides_once(delay: float, queue_seconds: float | None) -> None:
    world = pair([plan(abort_after=delay, queue_seconds=queue_seconds)], read_seconds=1.0)
    world.run()
    assert ends(world) == {"aborted": 1}
    assert moment(world, "releases") < 2


def test_abort_after_the_delivery_changes_nothing() -> None:
    world = pair([plan(abort_after=50.0)], read_seconds=1.0)
    world.run()
    assert ends(world) == {"delivered": 1}


def test_withdrawal_while_it_is_read_waits_for_the_reads() -> None:
    world = pair([plan(withdraw_after=0.5)], read_seconds=2.0)
    world.run()
    assert ends(world) == {"revoked": 1}
    assert moment(world, "fails") < moment(world, "reads ended") < moment(world, "releases")


def test_queued_request_keeps_its_blocks_for_minutes_and_then_reads_them() -> None:
    world = pair([plan(queue_seconds=300.0)])
    world.run()
    world.schedule.run(400.0)
    assert ends(world) == {"delivered": 1}
    assert moment(world, "releases") > 300


def test_drained_engines_end_what_they_have_and_say_so_once() -> None:
    world = pair([plan(), plan(1, at=1.0)], [Drain(0.5, PREFILL, 0.1), Drain(0.5, DECODE, 0.1)], read_seconds=2.0)
    world.run()
    assert ends(world) == {"delivered": 1}
    assert (world.ledger.counts["drained: prefill"], world.ledger.counts["drained: decode"]) == (1, 1)


def test_offer_with_a_short_lease_of_its_own_is_read_for_as_long_as_any() -> None:
    world = pair([plan(lease_seconds=0.5)], read_seconds=4.0)
    world.run()
    assert ends(world) == {"delivered": 1}


@pytest.mark.parametrize("drained_at", [0.05, 0.5, 1.2], ids=["before it is offered", "between chunks", "at the end"])
@pytest.mark.parametrize("queue_seconds", [None, 2.0], ids=["with room", "queued"])
def test_drained_decode_engine_reads_what_it_follows_to_the_end(drained_at: float, queue_seconds: float | None) -> None:
    progress = Progress("a transfer id that nobody guesses", (4, 8, 12), 0.4)
    world = pair([plan(progress=progress, queue_seconds=queue_seconds)], [Drain(drained_at, DECODE, 0.1)])
    world.run()
    assert (ends(world), world.ledger.counts["followed to the end"]) == ({}, 1)
    assert world.ledger.counts["drained: decode"] == 1


def test_drained_decode_side_takes_nothing_new_and_begins_what_it_holds() -> None:
    side = DecodeSide("decode-1", small_layout(2), TIMING)
    side.hold(0.0, 1, ADDRESS, reference("held"))
    side.drain(0.1)
    refused = (
        side.hold(0.2, 2, ADDRESS, reference("new"))
        + side.fetch(0.2, 3, Order(ADDRESS, reference("new"), TARGETS))
        + side.follow(0.2, 4, Pursuit(ADDRESS, "a transfer id that nobody guesses"))
    )
    assert [(e.fetch, e.reason) for e in of_type(refused, Failed)] == [(n, FailureReason.CLOSED) for n in (2, 3, 4)]
    assert of_type(refused, Reusable) == [Reusable(n) for n in (2, 3, 4)]
    side.fetch(0.3, 1, Order(ADDRESS, reference("held"), TARGETS))
    assert side.fetches.state(1) is FetchState.AWAITING_PEER


def test_closing_prefill_engine_tells_its_readers_at_once() -> None:
    world = pair(faults=[Close(0.5, PREFILL, 0.1)], read_seconds=2.0)
    world.run()
    assert ends(world) == {"revoked": 1}
    assert moment(world, "fails") < 0.6


@pytest.mark.parametrize(("side", "drain"), [("prefill", "drain"), ("decode", "drain")])
def test_side_without_anything_is_drained_at_once(side: str, drain: str) -> None:
    sides = {
        "prefill": lambda: PrefillSide(ENGINE, small_layout(2), [b"a", b"b"], 10.0).drain(),
        "decode": lambda: DecodeSide("decode-1", small_layout(2), TIMING).drain(0.0),
    }
    assert sides[side]() == (Drained(),)


@pytest.fixture
def prefill() -> PrefillSide:
    return PrefillSide(ENGINE, small_layout(2), [b"a", b"b"], 10.0)


@pytest.mark.parametrize(
    ("message", "kind"),
    [(Claim(7, ENGINE, key()), Refused), (Renew(7, 1, ENGINE, key()), Refused), (Heartbeat(()), HandshakeRefused)],
    ids=["claim", "renewal", "heartbeat"],
)
def test_stranger_is_refused(prefill: PrefillSide, message: object, kind: type) -> None:
    (answer,) = messages(prefill.receive(0.0, "connection", message))
    assert (type(answer), answer.reason) == (kind, RefusalReason.NOT_HANDSHAKEN)


def test_stranger_who_acknowledges_is_ignored(prefill: PrefillSide) -> None:
    assert prefill.receive(0.0, "connection", Acknowledge(7, key(), (0,))) == ()


def test_verdict_of_a_decode_engine_comes_out_for_the_log_and_it_is_a_guest_no_more(prefill: PrefillSide) -> None:
    greeted, _ = prefill.receive(0.0, "connection", HandshakeRequest(1, "decode-1", EngineRole.DECODE, 2))
    assert greeted == Greeted("decode-1")
    problem = Problem("dtype", "float32", "bfloat16", "choose one")
    (effect,) = prefill.receive(1.0, "connection", Incompatible((problem,)))
    assert isinstance(effect, TurnedDown)
    assert str(effect.problems[0]) == "dtype: source has float32, target has bfloat16; choose one"
    assert len(prefill.reception) == 0


def test_request_that_finds_nobody_fails_within_the_time_of_a_handshake() -> None:
    side = DecodeSide("decode-1", small_layout(2), TIMING)
    side.hold(0.0, 7, ADDRESS, reference())
    side.handle_timer(19.9)
    assert len(side.fetches) == 1
    side.handle_timer(20.0)
    assert (len(side.fetches), len(side.peers)) == (0, 0)
