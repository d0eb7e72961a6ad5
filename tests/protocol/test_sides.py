"""Both sides joined: the whole life of a request, and what holds whatever the network does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvweave.protocol.effects import Delivered, Failed, FailureReason, TurnedDown
from kvweave.protocol.messages import (
    Acknowledge,
    Claim,
    Heartbeat,
    HeartbeatReply,
    Incompatible,
    Problem,
    RefusalReason,
    Refused,
)
from kvweave.protocol.sides import PrefillSide
from kvweave.protocol.timing import Timing
from tests.protocol.examples import ENGINE, key, messages, small_layout
from tests.protocol.world import CONNECTION, World


def reasons(world: World) -> dict[int, object]:
    return {fetch: getattr(report, "reason", "delivered") for fetch, report in world.reports.items()}


def test_an_offer_is_delivered_and_released_once() -> None:
    world = World()
    fetch = world.fetch(world.offer())
    world.run()
    assert world.reports == {fetch: Delivered(fetch)}
    assert world.released.keys() == {key()}
    assert world.released[key()] - 1000 < 1
    world.check_over()


def test_many_requests_share_one_handshake() -> None:
    world = World()
    sent: list[object] = []
    carry = world._carry
    world._carry = lambda to, data: (sent.append(data), carry(to, data))
    for number in range(20):
        world.fetch(world.offer(f"request {number}"))
    world.run()
    assert sum(b"handshake_reply" in data for data in sent) == 1
    assert set(reasons(world).values()) == {"delivered"}


def test_resent_reference_is_refused_while_and_after_it_is_fetched() -> None:
    world = World()
    wanted = world.offer()
    first, second = world.fetch(wanted), world.fetch(wanted)
    world.run()
    third = world.fetch(wanted)
    world.run()
    assert reasons(world) == {first: "delivered", second: FailureReason.DUPLICATE, third: RefusalReason.RELEASED}
    world.check_over()


def test_lease_that_ends_before_the_renewal_arrives_delivers_nothing() -> None:
    """The lease ends at 10 s, a renewal sent at 9.9 arrives at 11, blocks are reused at 10, the read ends at 10.3."""
    delays = iter([0.0, 0.0, 0.0, 9.9, 1.1])  # handshake, its reply, claim, claimed, renewal
    timing = Timing(answer_seconds=20)
    world = World(lambda: (next(delays, 0.0),), lambda: 0.4, lease_seconds=10.0, timing=timing)
    fetch = world.fetch(world.offer())
    world.run()
    assert reasons(world) == {fetch: RefusalReason.LEASE_ENDED}
    assert world.released[key()] - 1000 == pytest.approx(10, abs=0.01)
    assert [moment - 1000 for moment in world.completed[fetch]] == pytest.approx([10.3, 10.3], abs=0.01)
    world.check_over()


def test_decode_engine_that_was_stopped_past_its_lease_delivers_nothing() -> None:
    world = World(read_seconds=lambda: 1.0)
    fetch = world.fetch(world.offer())
    world.run(0.5)
    world.stop("decode", 60)
    world.run()
    assert isinstance(world.reports[fetch], Failed)
    world.check_over()


def test_prefill_engine_that_was_stopped_ends_the_lease_before_it_reads_the_renewal() -> None:
    world = World(read_seconds=lambda: 0.5)
    fetch = world.fetch(world.offer())
    world.run(0.0055)  # claimed and reading, the renewal is under way
    world.stop("prefill", 30)
    world.run()
    assert isinstance(world.reports[fetch], Failed)
    assert world.reported_at[fetch] - 1000 < 7
    world.check_over()


def test_long_reads_are_renewed_until_they_end() -> None:
    world = World(read_seconds=lambda: 45.0)
    fetch = world.fetch(world.offer())
    world.run()
    assert reasons(world) == {fetch: "delivered"}


def test_reads_that_never_end_are_given_up_within_read_seconds() -> None:
    world = World(read_seconds=lambda: 10_000.0)
    fetch = world.fetch(world.offer())
    world.run(200)
    assert reasons(world) == {fetch: FailureReason.LATE}
    assert world.reported_at[fetch] - 1000 < 121


def test_one_failed_rank_fails_the_fetch_once_and_frees_blocks_when_all_are_terminal() -> None:
    world = World(read_seconds=lambda: 2.0)
    fetch = world.fetch(world.offer())
    world.run(1)
    world.fail_read(fetch, 0)
    assert reasons(world) == {fetch: FailureReason.READ_FAILED}
    assert fetch not in world.reusable
    world.run()
    assert world.reusable[fetch] > world.reported_at[fetch]
    world.check_over()


@pytest.mark.parametrize("moment", [0.0, 0.0015, 0.0045, 0.5, 1.5, 50.0], ids="{} s".format)
def test_abort_at_any_point_frees_both_sides_once(moment: float) -> None:
    world = World(read_seconds=lambda: 1.0)
    fetch = world.fetch(world.offer())
    world.run(moment)
    world.abort(fetch)
    world.abort(fetch + 100)
    world.run()
    assert reasons(world) == {fetch: "delivered" if moment > 1 else FailureReason.ABORTED}
    world.check_over()


def test_withdrawal_while_it_is_read_waits_for_the_reads() -> None:
    world = World(read_seconds=lambda: 1.0)
    fetch = world.fetch(world.offer())
    world.run(0.5)
    world.perform(world.prefill.withdraw(world.now, key()))
    assert key() not in world.released
    world.run()
    assert reasons(world) == {fetch: FailureReason.REVOKED}
    world.check_over()


def test_queued_request_keeps_its_blocks_for_minutes_and_then_reads_them() -> None:
    world = World()
    wanted = world.offer()
    world.offers[77] = wanted.offer
    world.perform(world.decode.hold(world.now, 77, wanted.address, wanted))
    world.run(300)
    assert key() not in world.released
    world.abort(77)
    world.run()
    assert reasons(world) == {77: FailureReason.ABORTED}
    assert world.released[key()] - 1300 < 1


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 2, 4]))
def test_whatever_the_network_does_everything_ends_and_nothing_stale_is_delivered(
    dice: random.Random, ranks: int
) -> None:
    def network() -> list[float]:
        copies = dice.choice([1, 1, 1, 1, 1, 1, 2, 0])
        return [dice.choice([0.0, 0.001, 0.5, 4.0]) for _ in range(copies)]

    world = World(network, lambda: dice.choice([0.001, 1.0, 5.0]), lease_seconds=3.0, decode_ranks=ranks)
    for number in range(6):
        fetch = world.fetch(world.offer(f"request {number % 4}", number))
        world.run(dice.choice([0.0, 0.5, 3.0]))
        match dice.randrange(8):
            case 0:
                world.stop(dice.choice(["prefill", "decode"]), dice.choice([1.0, 5.0]))
            case 1:
                world.abort(fetch)
            case 2:
                world.perform(world.prefill.withdraw(world.now, world.offers[fetch]))
            case 3:
                world.fetch(world.offer("request 9", 100 + number))
    world.run(3000)
    world.check_over()


@pytest.fixture
def prefill() -> PrefillSide:
    return PrefillSide(ENGINE, small_layout(2), [b"a", b"b"], 10.0)


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (Claim(7, ENGINE, key()), Refused(7, RefusalReason.NOT_HANDSHAKEN, "this connection has not shaken hands")),
        (Heartbeat((key(),)), HeartbeatReply(((key(), RefusalReason.NOT_HANDSHAKEN),))),
    ],
    ids=["claim", "heartbeat"],
)
def test_stranger_is_refused(prefill: PrefillSide, message: object, answer: object) -> None:
    assert messages(prefill.receive(0.0, CONNECTION, message)) == [answer]


def test_stranger_who_acknowledges_is_ignored(prefill: PrefillSide) -> None:
    assert prefill.receive(0.0, CONNECTION, Acknowledge(key(), 0)) == ()


def test_verdict_of_a_decode_engine_comes_out_for_the_log() -> None:
    world = World()
    world.fetch(world.offer())
    world.run(1)
    problem = Problem("dtype", "float32", "bfloat16", "choose one")
    (effect,) = world.prefill.receive(world.now, CONNECTION, Incompatible((problem,)))
    assert isinstance(effect, TurnedDown)
    assert str(effect.problems[0]) == "dtype: source has float32, target has bfloat16; choose one"
