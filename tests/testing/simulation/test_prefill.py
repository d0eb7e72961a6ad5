"""The simulated prefill engine computes when it has blocks, and sees a block that is released wrongly."""

from __future__ import annotations

import pytest

from kvweave.protocol.effects import Release, ReleaseReason
from kvweave.protocol.messages import OfferKey
from kvweave.testing.simulation.blocks import Blocks
from kvweave.testing.simulation.holding import Holding, Offered
from kvweave.testing.simulation.ledger import Violation
from kvweave.testing.simulation.reads import Read
from kvweave.testing.simulation.scenario import RequestPlan, Scenario, Shape
from kvweave.testing.simulation.world import World

KEY = OfferKey("request", 1)


def request(number: int, blocks: int) -> RequestPlan:
    return RequestPlan(number, 0.0, 0, (0,), f"request {number}", blocks, 0.1, 0.1)


@pytest.fixture
def world() -> World:
    return World(Scenario(0, (Shape(1, 4),), (Shape(1, 8),), ()))


def test_request_waits_until_blocks_are_free(world: World) -> None:
    engine = world.prefill(0)
    for number in range(2):
        engine.request(request(number, 3))
    assert engine.pool.held == 3
    world.schedule.run(30.0)
    assert (world.ledger.counts["delivered"], engine.idle) == (2, True)


def test_request_that_never_fits_is_turned_away(world: World) -> None:
    world.prefill(0).request(request(0, 5))
    assert world.ledger.counts["requests too large"] == 1


def test_release_of_what_is_not_pinned_is_seen(world: World) -> None:
    with pytest.raises(Violation, match="not pinned"):
        world.prefill(0).perform((Release(KEY, ReleaseReason.ACKNOWLEDGED),))


@pytest.mark.parametrize(
    ("reason", "promised_until", "granted", "allowed"),
    [
        (ReleaseReason.ACKNOWLEDGED, 0.0, True, False),
        (ReleaseReason.LEASE_ENDED, 0.0, True, True),
        (ReleaseReason.LEASE_ENDED, float("inf"), True, False),
        (ReleaseReason.ACKNOWLEDGED, 0.0, False, True),
    ],
    ids=["acknowledged", "lease over", "lease alive", "its claim was never granted"],
)
def test_release_under_a_read_is_allowed_after_the_lease_alone(
    world: World, reason: ReleaseReason, promised_until: float, granted: bool, allowed: bool
) -> None:
    engine = world.prefill(0)
    holding = Holding(Blocks.take(engine.pool, engine.shape, 4, owner=0), pins=1)
    engine.offers[KEY] = Offered(holding, promised_until)
    engine.granted = {("decode 0.0", 1): KEY} if granted else {}
    world.decode(0).reads.post(Read(1, 1, 0, engine, 0, ((0, 3, 3),)), lambda _: None)
    if allowed:
        engine.perform((Release(KEY, reason),))
        assert engine.idle
    else:
        with pytest.raises(Violation, match="rank 0 of fetch 1 reads it"):
            engine.perform((Release(KEY, reason),))
