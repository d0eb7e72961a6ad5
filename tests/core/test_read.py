from __future__ import annotations

import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.plan import plan_transfer
from kvweave.core.read import Read, ReadEnd
from tests.core.engines import engine, heads_of, mamba2_of, model_of

MODEL = model_of(heads_of(4), heads_of(4))


def key_reads(prefill: EngineLayout, decode: EngineLayout) -> list[Read]:
    return [read for read in plan_transfer(prefill, decode).of(decode.ranks[-1]) if read.array.part == "k"]


@pytest.mark.parametrize("layout", ["HND", "NHD", "BHLNC"])
def test_an_end_begins_at_the_first_element_of_the_box(layout: str) -> None:
    rank = engine(MODEL, 2, CacheConfig(layout=layout, num_blocks=4)).rank(tp=1)
    shard = rank.shards[0]
    end = ReadEnd.of(rank, shard, (Interval(3, 4), Interval(1, 2)), shard.places)
    for address, place in zip(end.addresses, shard.places, strict=True):
        base = rank.regions[place.region].address + place.offset
        assert int(address) == base + shard.geometry.axis_strides[0] + shard.geometry.axis_strides[1]


def test_both_ends_name_the_layers_in_one_order() -> None:
    (read,) = key_reads(engine(MODEL, 4), engine(MODEL, 4))
    assert read.layers == ("full.0", "full.1")
    assert len(read.sources[0].addresses) == len(read.target.addresses) == 2


@pytest.mark.parametrize(("p", "d", "entry_bytes"), [(4, 1, 4), (1, 4, 4), (2, 2, 8), (1, 1, 16)])
def test_entry_bytes_are_those_of_the_box(p: int, d: int, entry_bytes: int) -> None:
    assert {read.entry_bytes for read in key_reads(engine(MODEL, p), engine(MODEL, d))} == {entry_bytes}


def test_state_bytes_are_those_of_the_whole_box() -> None:
    model = model_of(mamba2_of(1, 4), group="state")
    plan = plan_transfer(engine(model, 2), engine(model))
    found = {(read.array.part, read.entry_bytes) for read in plan.of(plan.decode.rank())}
    assert found == {("conv.x", 8), ("conv.b", 8), ("conv.c", 8), ("ssm", 16)}


def test_the_shape_of_runs_depends_on_the_chosen_source() -> None:
    tight, spread = (engine(MODEL, cache=CacheConfig(layout=name, num_blocks=4)) for name in ("HND", "NHD"))
    runs = [key_reads(side, tight)[0] for side in (tight, spread)]
    assert [read.runs(read.sources[0]).nbytes.tolist() for read in runs] == [[4] * 4] * 2
