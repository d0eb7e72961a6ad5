"""Which decode rank gets which head from whom: the published cases, and every case of their kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout, Region
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.read import Read, ReadEnd
from kvweave.core.spec import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import engine, faults, fits, heads_of, model_of, model_of_groups, stated_heads

Piece = tuple[tuple[int, ...], int]
"""Source ranks that hold a head alike, and its slot inside their blocks."""

TABLE = [
    (2, 1, 4, {0: [((0,), 0)], 1: [((0,), 0)], 2: [((0,), 1)], 3: [((0,), 1)]}),
    (2, 4, 1, {0: [((0, 1), 0), ((2, 3), 0)]}),
    (2, 8, 1, {0: [((0, 1, 2, 3), 0), ((4, 5, 6, 7), 0)]}),
    (4, 8, 2, {0: [((0, 1), 0), ((2, 3), 0)], 1: [((4, 5), 0), ((6, 7), 0)]}),
    (4, 2, 8, {d: [((d // 4,), d // 2 % 2)] for d in range(8)}),
    (8, 8, 16, {d: [((d // 2,), 0)] for d in range(16)}),
    (8, 16, 8, {d: [((2 * d, 2 * d + 1), 0)] for d in range(8)}),
]
KINDS = [
    pytest.param(k, p, d, id=f"K{k} P{p}>D{d}")
    for k in (1, 2, 3, 4, 6, 8, 12)
    for p in (1, 2, 3, 4, 6, 8, 16)
    for d in (1, 2, 3, 4, 6, 8, 16)
    if fits(k, p) and fits(k, d)
]


def head_slot(layout: EngineLayout, read: Read, end: ReadEnd) -> int:
    region = layout.at(end.coordinates).regions[end.regions[0]]
    return (int(end.addresses[0]) - region.address) // end.geometry.axis_strides[0]


def pieces(plan: TransferPlan) -> dict[int, list[Piece]]:
    """Per decode rank, head by head of its own block: where it comes from."""
    found: dict[int, list[Piece]] = {}
    for target, reads in plan.reads.items():
        for read in (read for read in reads if read.array.part == "k"):
            ranks = tuple(source.coordinates.tp for source in read.sources)
            first = head_slot(plan.prefill, read, read.sources[0])
            found.setdefault(target.tp, []).extend((ranks, first + n) for n in range(read.extents[0]))
    return found


def plan_of(heads: int, prefill_tp: int, decode_tp: int) -> TransferPlan:
    model = model_of(heads_of(heads))
    return plan_transfer(engine(model, prefill_tp), engine(model, decode_tp))


@pytest.mark.parametrize(("heads", "p", "d", "expected"), TABLE, ids=[f"K{k} P{p}>D{d}" for k, p, d, _ in TABLE])
def test_published_case(heads: int, p: int, d: int, expected: dict[int, list[Piece]]) -> None:
    assert pieces(plan_of(heads, p, d)) == expected


@pytest.mark.parametrize(("heads", "p", "d"), KINDS)
def test_every_head_comes_from_all_ranks_that_hold_it(heads: int, p: int, d: int) -> None:
    holders = [
        [r for r in range(p) if head in {r * heads // p + n for n in range(max(1, heads // p))}]
        for head in range(heads)
    ]
    expected = {}
    for rank in range(d):
        mine = [rank * heads // d + n for n in range(max(1, heads // d))]
        expected[rank] = [(tuple(holders[head]), head % max(1, heads // p)) for head in mine]
    assert pieces(plan_of(heads, p, d)) == expected


@pytest.mark.parametrize(("heads", "p", "d"), KINDS)
def test_source_slices_are_as_many_as_needed(heads: int, p: int, d: int) -> None:
    slices = {piece for received in pieces(plan_of(heads, p, d)).values() for piece in received}
    assert len(slices) == heads


@pytest.mark.parametrize(("heads", "p", "d"), KINDS)
def test_one_rank_of_a_set_of_replicas_is_read(heads: int, p: int, d: int) -> None:
    plan = plan_of(heads, p, d)
    distinct_shares = min(heads, p)
    for target in plan.reads:
        mine = [target.tp * heads // d + n for n in range(max(1, heads // d))]
        assert len(plan.sources(target)["full"]) == len({head * distinct_shares // heads for head in mine})


@pytest.mark.parametrize(("heads", "p", "d"), KINDS)
def test_block_bytes_follow_from_the_heads_a_rank_holds(heads: int, p: int, d: int) -> None:
    plan = plan_of(heads, p, d)
    source, target = (layout.ranks[0].shards[0].geometry.block_stride for layout in (plan.prefill, plan.decode))
    assert source * max(1, heads // d) == target * max(1, heads // p)


@pytest.mark.parametrize(("p", "d"), [(3, 1), (1, 3), (3, 2), (2, 3)], ids=str)
def test_three_heads_with_stated_intervals_move_once_each(p: int, d: int) -> None:
    model = model_of(heads_of(3))
    prefill, decode = (engine(model, tp, stated=stated_heads(3, tp)) for tp in (p, d))
    assert faults(prefill, decode) == []
    received = [head for target in plan_transfer(prefill, decode).reads.values() for read in target
                if read.array.part == "k" for head in range(read.box[0].start, read.box[0].stop)]  # fmt: skip
    assert sorted(received) == [0, 1, 2]


def test_groups_of_one_model_have_maps_of_their_own() -> None:
    model = model_of_groups(
        {
            "window.16": [SlidingWindowSpec(8, 4, 16)],
            "full": [FullAttentionSpec(1, 8), FullAttentionSpec(4, 2, 3)],
        }
    )
    prefill, decode = engine(model, 4), engine(model, 2)
    sources = plan_transfer(prefill, decode).sources(decode.rank(tp=1))
    assert {rank.tp for rank in sources["window.16"]} == {2, 3}
    assert faults(prefill, decode) == faults(decode, prefill) == []


def test_replication_is_decided_per_array() -> None:
    model = model_of(heads_of(4), MLAAttentionSpec(3, part="indexer"))
    plan = plan_transfer(engine(model, 4), engine(model))
    read_from = {read.array.part: set() for read in plan.of(plan.decode.rank())}
    for read in plan.of(plan.decode.rank()):
        read_from[read.array.part].add(tuple(source.coordinates.tp for source in read.sources))
    assert read_from == {"k": {(0,), (1,), (2,), (3,)}, "v": {(0,), (1,), (2,), (3,)}, "indexer": {(0, 1, 2, 3)}}


@pytest.mark.parametrize("first", [2**31 - 64, 2**31, 2**32, 2**63 - 64, 2**63, 2**64 - 2**20], ids=hex)
def test_addresses_of_any_height_are_right(first: int) -> None:
    model = model_of(heads_of(4))
    low, decode = engine(model), engine(model, cache=CacheConfig(8, "NHD", num_blocks=8))
    high = low.relocated(low.ranks[0].coordinates, [replace(low.rank().regions[0], address=first)])
    rows, moved = (
        plan_transfer(side, decode).descriptors(decode.rank(), [5, 7], [1, 4, 2], 20) for side in (low, high)
    )
    distance = [
        first - low.rank().regions[0].address + int(address) for address in rows[low.rank().coordinates].source_address
    ]
    assert moved[low.rank().coordinates].source_address.tolist() == distance
    assert plan_transfer(high, decode).verify().ok and plan_transfer(decode, high).verify().ok


def test_pools_of_different_sizes_never_matter() -> None:
    model = model_of(heads_of(4))
    prefill = engine(model, 2, CacheConfig(num_blocks=1000))
    half = prefill.rank(tp=1)
    smaller = replace(half, shards=tuple(replace(shard, num_blocks=300) for shard in half.shards),
                      regions=tuple(Region(region.address, region.nbytes // 3) for region in half.regions))  # fmt: skip
    uneven = replace(prefill, ranks=(prefill.rank(tp=0), smaller))
    decode = engine(model, 1, CacheConfig(num_blocks=50))
    rows = [plan_transfer(side, decode).descriptors(decode.rank(), [7, 9], [1, 2], 20) for side in (prefill, uneven)]
    for rank in rows[0]:
        assert np.array_equal(rows[0][rank].source_address, rows[1][rank].source_address)
        assert np.array_equal(rows[0][rank].target_address, rows[1][rank].target_address)
