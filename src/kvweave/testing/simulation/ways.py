"""What is drawn beside the ordinary requests: replicas that serve one request together, and progressive transfers.

Three fifths of the scenarios get one of them or both. Blocks are added for what needs more, so that pools stay about as
short as they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from kvweave.testing.simulation.memory import num_blocks
from kvweave.testing.simulation.scenario import (
    LARGE_HEAD,
    Crash,
    FailingReads,
    Fault,
    Mistake,
    Place,
    Progress,
    RequestPlan,
    Role,
    Scenario,
    Shape,
)

MORE_BLOCKS = 6
"""What a request of a model with windows and states takes beside, and a little for the transfers."""
ENOUGH_BLOCKS = 80
"""Where nothing goes wrong everything must be delivered, so nobody may wait in a circle: a followed prompt with room
waits for blocks of the prefill engine, which are pinned for requests that wait for room. Elsewhere that ends
when nothing new was offered for ``progress_seconds``."""


def with_ways(ordinary: Scenario, calm: bool) -> Scenario:
    """The scenario with what is drawn beside."""
    dice = random.Random(f"scenario {ordinary.seed} ways")
    if dice.random() < 0.4:
        return ordinary
    striped, share, mixed = dice.random() < 0.5, dice.choice((0.0, 0.2, 0.3, 0.4)), dice.random() < 0.5
    scenario = ordinary
    if striped:
        scenario = _striped(dice, scenario, calm)
    if not share:
        return scenario
    more = ENOUGH_BLOCKS if calm else MORE_BLOCKS
    scenario = replace(
        scenario, prefill=_larger(scenario.prefill, mixed, more), decode=_larger(scenario.decode, mixed, more),
        timing=replace(scenario.timing, progress_seconds=30.0 if calm else dice.choice((2.0, 6.0, 15.0))),
    )  # fmt: skip
    count, horizon = max(1, round(share * len(ordinary.requests))), 0.4 * len(ordinary.requests)
    numbers = range(len(ordinary.requests), len(ordinary.requests) + count)
    followed = [_followed(dice, number, horizon, scenario, calm) for number in numbers]
    requests = sorted((*scenario.requests, *followed), key=lambda plan: plan.at)
    deaths = () if calm else tuple(_deaths(dice, followed))
    faults = sorted((*scenario.faults, *deaths), key=lambda fault: fault.at)
    return replace(scenario, requests=tuple(requests), faults=tuple(faults))


def moment(dice: random.Random) -> float:
    """A delay of any order of magnitude, so that every stage of a request's life is met."""
    return float(10 ** dice.uniform(-3, 0.5))


def _striped(dice: random.Random, scenario: Scenario, calm: bool) -> Scenario:
    """Prefill ranks become replicas of each other, and heads so large that requests are read in stripes."""
    heads = dice.choice((1, 1, 2))
    prefill = tuple(replace(s, tp=dice.choice((2, 4, 4)), heads=heads, head_size=LARGE_HEAD) for s in scenario.prefill)
    decode = tuple(replace(s, tp=dice.choice((1, 1, 2, 4)), heads=heads, head_size=LARGE_HEAD) for s in scenario.decode)
    faults = list(scenario.faults)
    for _ in range(0 if calm else dice.choice((0, 1, 2))):
        source = dice.randrange(len(prefill))
        at = dice.uniform(0.0, 0.4 * len(scenario.requests))
        faults.append(FailingReads(at, dice.uniform(0.5, 4.0), source, dice.randrange(prefill[source].tp)))
    faults.sort(key=lambda fault: fault.at)
    return replace(scenario, prefill=prefill, decode=decode, faults=tuple(faults))


def _larger(shapes: tuple[Shape, ...], mixed: bool, more: int) -> tuple[Shape, ...]:
    return tuple(replace(shape, blocks=shape.blocks + more, mixed=mixed) for shape in shapes)


def _followed(dice: random.Random, number: int, horizon: float, scenario: Scenario, calm: bool) -> RequestPlan:
    """A request that is offered while it is prefilled."""
    some = 0.0 if calm else 1.0
    first, engines = dice.randrange(len(scenario.decode)), len(scenario.decode)
    decode = (first,) if calm or dice.random() < 0.9 else (first, (first + 1) % engines)
    progress = _progress(dice, number, len(decode), some)
    resent = (moment(dice),) if dice.random() < 0.1 * some else ()
    lasts = progress.seconds + 2.0
    return RequestPlan(
        number,
        dice.uniform(0.0, horizon),
        dice.randrange(len(scenario.prefill)),
        decode,
        f"request {dice.randrange(6)}" if dice.random() < 0.4 else f"request {100 + number}",
        num_blocks(progress.steps[-1]),
        0.0,
        dice.uniform(0.01, 0.4),
        dice.choice((None, None, dice.uniform(0.0, 1.0), dice.uniform(0.0, 5.0))),
        lease_seconds=dice.uniform(0.4, 4.0) if dice.random() < 0.3 else None,
        abort_after=dice.choice((moment(dice), dice.uniform(0.0, lasts))) if dice.random() < 0.2 * some else None,
        withdraw_after=moment(dice) if dice.random() < 0.1 * some else None,
        resent=resent,
        progress=progress,
    )


def _progress(dice: random.Random, number: int, followers: int, some: float) -> Progress:
    count, tokens = dice.choice((1, 2, 3, 3, 4, 5)), 0
    steps: list[int] = []
    for _ in range(count):
        tokens += dice.choice((4, 4, 8, dice.randint(1, 7)))
        steps.append(tokens)
    acts = range(3 * count)
    again = dice.random() < 0.2 * some
    follows = dice.random() >= 0.1 * some
    return Progress(
        f"a transfer id that nobody guesses {dice.randrange(3) if again else 100 + number}",
        tuple(steps),
        dice.choice((0.02, 0.1, 0.3, 0.6)),
        begin_after=None if dice.random() < 0.05 * some else dice.choice((0.0, dice.uniform(0.0, 1.0))),
        follow_after=tuple(dice.choice((0.0, moment(dice))) for _ in range(followers)) if follows else (),
        preempted=tuple(act for act in acts if dice.random() < 0.12),
        given_up=dice.choice(acts) if dice.random() < 0.12 * some else None,
        start_token=min(dice.randint(1, 9), tokens) if dice.random() < 0.25 else 0,
        handed_over=not follows or dice.random() < 0.1 * some,
        told=dice.random() < 0.5,
        mistake=dice.choice(list(Mistake)) if dice.random() < 0.06 * some else None,
    )


def _deaths(dice: random.Random, followed: list[RequestPlan]) -> Iterator[Fault]:
    """Engines that end while something is prefilled for them or by them."""
    for plan in followed:
        if plan.progress is None or dice.random() >= 0.12:
            continue
        place = Place(Role.PREFILL, plan.prefill) if dice.random() < 0.7 else Place(Role.DECODE, plan.decode[0])
        at = plan.at + dice.uniform(0.0, plan.progress.seconds)
        yield Crash(at, place, dice.choice((0.01, 0.2, 1.0)), dice.random() < 0.7, dice.random() < 0.4)
