from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvweave.core.array import DType
from kvweave.core.cache_config import CacheConfig, MemoryKind
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout, Geometry, RankLayout, Region, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.tokens import TokenShare
from kvweave.errors import LayoutError
from tests.core.engines import engine, heads_of, mamba2_of, model_of

LAYOUT = engine(model_of(heads_of(4), heads_of(4)), 2)
RANK = LAYOUT.rank()
SHARD = RANK.shards[0]


def with_geometry(**strides: object) -> Shard:
    return replace(SHARD, geometry=replace(SHARD.geometry, **strides))


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [(-1, 10), (0, 0), (0, -5), (2**64, 1), (2**64 - 9, 10)],
    ids=["below zero", "empty", "negative size", "above 64 bits", "reaching out of 64 bits"],
)
def test_a_region_outside_the_address_space_is_refused(address: int, nbytes: int) -> None:
    with pytest.raises(LayoutError, match=rf"region: address {address:#x} with {nbytes} bytes .*; state an address"):
        Region(address, nbytes)


NUMBERS = [pytest.param(value, id=repr(value)) for value in (math.nan, 1.5, "8", None, True)]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("field", ["address", "nbytes", "device"])
def test_a_region_is_described_in_whole_numbers(field: str, value: object) -> None:
    with pytest.raises(LayoutError, match=f"region: {field} is .*; it must be a whole number"):
        replace(RANK.regions[0], **{field: value})


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(
    "field", ["block_entries", "kernel_block_entries", "block_stride", "kernel_stride", "entry_stride"]
)
def test_a_geometry_is_described_in_whole_numbers(field: str, value: object) -> None:
    with pytest.raises(LayoutError, match=f"geometry: {field} is .*; it must be a whole number"):
        with_geometry(**{field: value})


@pytest.mark.parametrize("value", NUMBERS)
def test_axis_strides_places_and_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(LayoutError, match=r"geometry: axis stride 1 is .*; it must be a whole number"):
        with_geometry(axis_strides=(128, value))
    with pytest.raises(LayoutError, match=r"full\.0 k: num_blocks is .*; it must be a whole number"):
        replace(SHARD, num_blocks=value)
    with pytest.raises(LayoutError, match=r"place of full\.0: offset is .*; it must be a whole number"):
        replace(SHARD.places[0], offset=value)


@pytest.mark.parametrize("device", [-1, 2**32])
def test_a_region_lies_on_a_device_that_a_transport_can_name(device: int) -> None:
    with pytest.raises(LayoutError, match=f"region: device is {device}; it must be a whole number of at"):
        Region(0, 8, device=device)


def test_a_region_may_end_with_the_address_space() -> None:
    assert Region(2**64 - 10, 10).nbytes == 10


@pytest.mark.parametrize(("block", "kernel"), [(16, 5), (16, 32), (0, 1), (16, 0)])
def test_a_kernel_block_must_divide_the_block(block: int, kernel: int) -> None:
    with pytest.raises(LayoutError, match=f"kernel block of {kernel} entries in a block of {block}; it must divide it"):
        Geometry(block, kernel, 100, 10, 1, ())


@pytest.mark.parametrize("field", ["block_stride", "kernel_stride", "entry_stride", "axis_strides"])
def test_a_negative_stride_is_refused(field: str) -> None:
    with pytest.raises(LayoutError, match="a stride is negative; describe the memory from its lowest address"):
        with_geometry(**{field: (-2, 2) if field == "axis_strides" else -1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_stride": 250}, "a stride of 250 bytes over 8 steps falls inside the 252 bytes below it"),
        ({"entry_stride": 3}, "a stride of 3 bytes over 16 steps falls inside the 4 bytes below it"),
        ({"axis_strides": (2, 2)}, "a stride of 2 bytes over 2 steps falls inside the 4 bytes below it"),
        ({"axis_strides": (128, 1)}, "a stride of 1 bytes over 2 steps falls inside the 2 bytes below it"),
        ({"axis_strides": (128, 0)}, "a stride of 0 bytes over 2 steps"),
    ],
    ids=["block", "entry", "head", "dim", "no stride"],
)
def test_strides_under_which_elements_overlap_are_refused(change: dict[str, object], message: str) -> None:
    head, dim = SHARD.geometry.axis_strides
    assert (SHARD.geometry.block_stride, SHARD.geometry.entry_stride, head, dim) == (256, 8, 128, 2)
    with pytest.raises(LayoutError, match=f"full.0 k: {message}"):
        with_geometry(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"box": SHARD.box[:1]}, "2 axes, but a box of 1 and 2 strides; state one of each per axis"),
        ({"box": (Interval(0, 5), SHARD.box[1])}, r"axis head: box \[0, 5\) is not inside \[0, 4\)"),
        ({"box": (Interval(1, 1), SHARD.box[1])}, r"axis head: box \[1, 1\) is not inside"),
        ({"num_blocks": 0}, "num_blocks 0, scratch_blocks 0"),
        ({"scratch_blocks": -1}, "num_blocks 8, scratch_blocks -1"),
        ({"tokens": None}, "a token share belongs to an array with a token axis, and only there"),
        ({"tokens": TokenShare(2, 0, 5)}, "interleave 5 does not divide the 16 entries of a block"),
    ],
    ids=["axes", "box too large", "empty box", "no blocks", "negative scratch", "no share", "interleave"],
)
def test_a_shard_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=f"full.0 k.*{message}"):
        replace(SHARD, **change)


def test_a_shard_that_lies_nowhere_is_refused() -> None:
    with pytest.raises(LayoutError, match="shard k: it lies nowhere; place at least one layer"):
        replace(SHARD, places=())


@pytest.mark.parametrize("second", [RANK.regions[0].address, RANK.regions[0].address + RANK.regions[0].nbytes - 1],
                         ids=["the same", "by one byte"])  # fmt: skip
def test_overlapping_regions_are_refused(second: int) -> None:
    regions = (RANK.regions[0], replace(RANK.regions[1], address=second))
    with pytest.raises(
        LayoutError, match=r"tp0: regions overlap: .* reaches into .*; register each byte in one region"
    ):
        replace(RANK, regions=regions)


@pytest.mark.parametrize("other", [{"memory": MemoryKind.VRAM}, {"device": 1}], ids=str)
def test_equal_addresses_in_other_memory_do_not_overlap(other: dict[str, object]) -> None:
    regions = (RANK.regions[0], replace(RANK.regions[1], address=RANK.regions[0].address, **other))
    assert replace(RANK, regions=regions).regions == regions


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"region": 2}, "lies in region 2 of 2; name a region that exists"),
        ({"region": -1}, "lies in region -1 of 2"),
        ({"offset": -1}, "needs bytes -1 to"),
        ({"offset": 6}, "needs bytes 6 to 2050 of a region of 2048; enlarge it or lower num_blocks"),
    ],
    ids=["region too high", "region negative", "offset negative", "offset too high"],
)
def test_a_place_outside_its_region_is_refused(place: dict[str, int], message: str) -> None:
    moved = replace(SHARD, places=(replace(SHARD.places[0], **place), *SHARD.places[1:]))
    with pytest.raises(LayoutError, match=f"tp0: full.0 k {message}"):
        RankLayout(RANK.coordinates, RANK.regions, (moved,))


def test_an_array_placed_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"full\.0 k is placed twice; place it once"):
        replace(RANK, shards=(SHARD, SHARD))


@pytest.mark.parametrize(
    "ranks", [LAYOUT.ranks[:1], LAYOUT.ranks[::-1], LAYOUT.ranks * 2], ids=["few", "order", "many"]
)
def test_ranks_must_be_those_of_the_parallel_sizes(ranks: tuple[RankLayout, ...]) -> None:
    with pytest.raises(LayoutError, match=r"engine: ranks .* but its parallel sizes give \['tp0', 'tp1'\]"):
        replace(LAYOUT, ranks=ranks)


def test_a_rank_that_the_engine_does_not_have_is_refused() -> None:
    with pytest.raises(LayoutError, match="rank tp2: the engine has pp=1, pcp=1, tp=2; name a rank inside"):
        LAYOUT.rank(tp=2)


def test_a_relocated_rank_lies_elsewhere_and_nothing_else_changes() -> None:
    regions = [Region(1000 + number * 5000, region.nbytes) for number, region in enumerate(LAYOUT.rank(tp=1).regions)]
    moved = LAYOUT.relocated(RankCoordinates(tp=1), regions)
    assert moved.rank(tp=1).regions == tuple(regions)
    assert moved.rank(tp=0) == LAYOUT.rank(tp=0) and moved.rank(tp=1).shards == LAYOUT.rank(tp=1).shards


def test_a_relocated_region_must_not_shrink() -> None:
    shrunk = [replace(region, nbytes=region.nbytes - 1) for region in RANK.regions]
    with pytest.raises(LayoutError, match="of a region of 2047; enlarge it"):
        LAYOUT.relocated(RANK.coordinates, shrunk)


def test_block_bytes_are_what_one_block_touches() -> None:
    assert SHARD.block_bytes == 256 - 4  # the page without the last value
    assert SHARD.extent_bytes == 7 * 256 + SHARD.block_bytes


def test_a_state_needs_no_token_strides() -> None:
    shard = engine(model_of(mamba2_of(1, 2))).rank().shards[0]
    assert shard.tokens is None and shard.geometry.block_entries == 1


def test_built_layouts_carry_memory_kind_and_device() -> None:
    layout = EngineLayout.build(LAYOUT.model, LAYOUT.parallel, CacheConfig(memory="VRAM", device=3, num_blocks=2))
    assert {(region.memory, region.device) for rank in layout.ranks for region in rank.regions} == {
        (MemoryKind.VRAM, 3)
    }


def test_an_opaque_element_is_placed_whole() -> None:
    packed = replace(SHARD.array, dtype=DType("packed", 3))
    geometry = replace(SHARD.geometry, axis_strides=(300, 3), entry_stride=6, block_stride=700)
    shard = replace(SHARD, array=packed, geometry=geometry)
    assert shard.block_bytes == 3 + 3 + 15 * 6 + 300


def test_a_group_has_as_many_blocks_as_its_smallest_rank() -> None:
    smaller = replace(RANK, shards=tuple(replace(shard, num_blocks=5) for shard in RANK.shards))
    layout = replace(LAYOUT, ranks=(smaller, *LAYOUT.ranks[1:]))
    assert (dict(LAYOUT.num_blocks), dict(layout.num_blocks)) == ({"full": 8}, {"full": 5})
    assert layout.group_names() == ("full",)
