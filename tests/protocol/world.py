"""The simulation's world with one engine of each role, a swift network, and reads that all last equally long."""

from __future__ import annotations

from collections.abc import Sequence

from kvweave.protocol.timing import Timing
from kvweave.testing.simulation.network import Delays
from kvweave.testing.simulation.scenario import Fault, RequestPlan, Scenario, Shape
from kvweave.testing.simulation.world import World
from tests.protocol.examples import TIMING


def plan(number: int = 0, at: float = 0.0, **changes: object) -> RequestPlan:
    """A request whose prefill ends at once and whose blocks are used for a moment."""
    fields = {"blocks": 2, "prefill_seconds": 0.0, "use_seconds": 0.01} | changes
    return RequestPlan(number, at, 0, (0,), f"request {number}", **fields)


def pair(
    requests: Sequence[RequestPlan] = (plan(),),
    faults: Sequence[Fault] = (),
    read_seconds: float = 0.01,
    delays: Delays = lambda *_: (0.001,),
    timing: Timing = TIMING,
    lease_seconds: float = 10.0,
) -> World:
    """A world of four prefill ranks, pairs of which are replicas, and two decode ranks."""
    scenario = Scenario(
        0, (Shape(4, 64),), (Shape(2, 64),), tuple(requests), tuple(faults), lease_seconds=lease_seconds, timing=timing
    )
    world = World(scenario, traced=True, delays=delays)
    world.read_faults.fixed_seconds = read_seconds
    return world


def ends(world: World) -> dict[str, int]:
    """How fetches ended, how often."""
    counts = world.ledger.counts
    return {
        name.removeprefix("failed: "): amount for name, amount in counts.items() if name.startswith(("deliv", "failed"))
    }


def moment(world: World, what: str) -> float:
    """When something first happened."""
    return next(float(line.split()[0]) for line in world.ledger.trace or () if what in line)
