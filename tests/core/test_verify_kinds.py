"""Proofs of memory that is unusual but right, and of what only some requests would read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvweave.core.cache_config import CacheConfig, MemoryKind
from kvweave.core.layout import EngineLayout, Region
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.spec import MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

RANK = RankCoordinates()
LATENT = model_of(MLAAttentionSpec(3), MLAAttentionSpec(3))


def wrong_replica(plan: TransferPlan, number: int) -> TransferPlan:
    """The plan with one of its equal sources an element off."""
    (read,) = plan.of(RANK)
    source = read.sources[number]
    shifted = replace(source, addresses=source.addresses + np.uint64(2))
    sources = (*read.sources[:number], shifted, *read.sources[number + 1 :])
    return replace(plan, reads={RANK: (replace(read, sources=sources),)})


@pytest.mark.parametrize("number", range(8))
def test_a_fault_in_any_replica_is_found(number: int) -> None:
    plan = plan_transfer(engine(LATENT, 8), engine(LATENT))
    problems = wrong_replica(plan, number).verify().problems
    assert f"other bytes than their own from tp{number}" in problems[-1]
    assert all(f"tp{number}" in problem for problem in problems)


@pytest.mark.parametrize("planned", [None, RankCoordinates(tp=1)], ids=["all ranks", "one rank"])
def test_every_source_that_may_serve_is_proved(planned: RankCoordinates | None) -> None:
    model = model_of_groups({"full": [MLAAttentionSpec(3)], "state": [mamba2_of(1, 8)]})
    plan = plan_transfer(engine(model, 8), engine(model, 2), planned)
    report = plan.verify()
    assert report.ok and report.requests == (4 if planned is None else 8)


def on_devices_of_equal_addresses(layout: EngineLayout) -> EngineLayout:
    """Each region on a device of its own, all from the same address."""
    for rank in layout.ranks:
        regions = [Region(0x1000, region.nbytes, MemoryKind.VRAM, device) for device, region in enumerate(rank.regions)]
        layout = layout.relocated(rank.coordinates, regions)
    return layout


def test_devices_may_use_equal_addresses() -> None:
    model = model_of(heads_of(4), heads_of(4), MLAAttentionSpec(3))
    prefill, decode = (on_devices_of_equal_addresses(engine(model, tp)) for tp in (4, 2))
    assert plan_transfer(prefill, decode).verify().ok


@pytest.mark.parametrize("address", [2**31 + 16, 2**63 - 2**20, 2**64 - 2**20], ids=hex)
def test_regions_may_lie_anywhere(address: int) -> None:
    model = model_of(MLAAttentionSpec(3))
    size = engine(model).rank().regions[0].nbytes
    far = engine(model).relocated(RANK, [Region(address + 2**20 - size, size)])
    assert plan_transfer(far, engine(model)).verify().ok and plan_transfer(engine(model), far).verify().ok


def test_layers_that_the_source_lets_go_of_at_different_times_are_proved() -> None:
    """One table at the target, two at the source, whose blocks are of other sizes."""
    compressed = MLAAttentionSpec(2, tokens_per_state=24, sliding_window=24)
    specs = SlidingWindowSpec(2, 2, 24), SlidingWindowSpec(2, 2, 24), compressed
    together = model_of(*specs, group="one")
    (group,) = together.groups
    small, large = (replace(group, name=name) for name in ("small", "large"))
    groups = replace(small, layers=group.layers[:1]), replace(large, layers=group.layers[1:])
    prefill, decode = (
        engine(model, cache=CacheConfig(16, num_blocks=20)) for model in (replace(together, groups=groups), together)
    )
    assert plan_transfer(prefill, decode).verify(150).problems == ()
