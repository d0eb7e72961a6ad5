"""The oracle must find every planted fault; a fault is planted in values, never in the oracle."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvweave.core.array import Axis
from kvweave.core.cache_config import CacheConfig, ConvOrder
from kvweave.core.descriptors import RequestDescriptors
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout, Geometry, RankLayout, Region, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.rows import Rows
from kvweave.core.spec import FullAttentionSpec, MambaSpec, SlidingWindowSpec, StatePart
from kvweave.testing.oracle import Oracle, check_plan, layout_problems
from kvweave.testing.requests import Request
from tests.core.engines import BFLOAT16, engine, heads_of, model_of, request_between

MODEL = model_of(heads_of(4), heads_of(4))
RANK = RankCoordinates()


def with_shards(layout: EngineLayout, change: Callable[[RankLayout, Shard], Shard]) -> EngineLayout:
    ranks = (replace(rank, shards=tuple(change(rank, shard) for shard in rank.shards)) for rank in layout.ranks)
    return replace(layout, ranks=tuple(ranks))


def faults_of_plan_between(prefill: EngineLayout, decode: EngineLayout, believed: EngineLayout) -> list[str]:
    """The faults of a plan that believes something else of the prefill side than what is so."""
    oracle = Oracle(prefill, decode)
    return check_plan(plan_transfer(believed, decode), request_between(oracle, 20), oracle)


def with_rows(change: Callable[[Rows], Rows]) -> list[str]:
    """The faults of a right plan whose rows were changed."""
    prefill, decode = engine(MODEL), engine(MODEL, cache=CacheConfig(8, "NHD", num_blocks=8, page_padding=6))
    oracle = Oracle(prefill, decode)
    request = request_between(oracle, 20)
    described = plan_transfer(prefill, decode).descriptors(decode.rank(), request.source, request.target, 20)
    rows = {source: change(part) for source, part in described.items()}
    return oracle.problems(request, {RANK: RequestDescriptors(rows, {})})


def changed(rows: Rows, **columns: np.ndarray) -> Rows:
    return replace(rows, **columns)


def first_only(column: np.ndarray, by: int) -> np.ndarray:
    moved = column.copy()
    moved[0] += by
    return moved


def test_a_right_plan_has_no_fault() -> None:
    assert with_rows(lambda rows: rows) == []


@pytest.mark.parametrize("shift", [1, 3], ids=["off by one", "off by three"])
def test_a_head_map_that_is_off_is_found(shift: int) -> None:
    prefill, decode = engine(MODEL, 4), engine(MODEL, 2)

    def other_head(rank: RankLayout, shard: Shard) -> Shard:
        head = (rank.coordinates.tp + shift) % 4
        return replace(shard, box=(Interval(head, head + 1), shard.box[1]))

    found = faults_of_plan_between(prefill, decode, with_shards(prefill, other_head))
    assert any("not the ones that were wanted" in fault for fault in found)


@pytest.mark.parametrize("order", list(ConvOrder))
def test_a_contiguous_conv_split_is_found(order: str) -> None:
    """Sections x, B, C taken for one array of 16 channels: same bytes per rank, a few channels wrong."""
    sections = MambaSpec.mamba2(4, 2, 2, 2, 4, BFLOAT16, BFLOAT16)
    taps = sections.states[0].axes[1]
    one_section = MambaSpec(
        "mamba2", (StatePart("conv.x", (Axis("channel", 16, 4), taps), BFLOAT16), sections.states[3])
    )
    cache = CacheConfig(num_blocks=4, conv_order=order)
    right, wrong = ([engine(model_of(spec), tp, cache) for tp in (1, 2)] for spec in (sections, one_section))
    oracle = Oracle(*right)
    request = request_between(oracle, 5)
    plan = plan_transfer(*wrong)
    described = {rank: plan.descriptors(rank, request.source, request.target, 5) for rank in plan.reads}
    assert any("not the ones that were wanted" in fault for fault in oracle.problems(request, described))


def test_blocks_matched_from_the_wrong_end_are_found() -> None:
    prefill, decode = engine(MODEL), engine(MODEL, cache=CacheConfig(8, num_blocks=8))
    oracle = Oracle(prefill, decode)
    request = request_between(oracle, 24)
    reversed_tables = {group: table[::-1] for group, table in request.target.items()}
    described = {RANK: plan_transfer(prefill, decode).descriptors(RANK, request.source, reversed_tables, 24)}
    assert oracle.problems(request, described)


@pytest.mark.parametrize("field", ["block_stride", "kernel_stride", "entry_stride"])
def test_a_stride_that_counts_the_padding_twice_is_found(field: str) -> None:
    cache = CacheConfig(8, kernel_block_size=4, num_blocks=8, page_padding=8)
    prefill, decode = engine(MODEL, cache=cache), engine(MODEL)

    def wider(rank: RankLayout, shard: Shard) -> Shard:
        strides = {field: getattr(shard.geometry, field) + 8}
        return replace(shard, geometry=replace(shard.geometry, **strides), num_blocks=5)

    believed = with_shards(prefill, wider) if field != "entry_stride" else with_shards(prefill, _token_major)
    oracle = Oracle(prefill, decode)
    request = Request(20, 0, {"full": np.array([1, 4, 2])}, {"full": np.array([1, 0])})
    assert check_plan(plan_transfer(believed, decode), request, oracle)


def _token_major(rank: RankLayout, shard: Shard) -> Shard:
    """The same page, believed to be token before head."""
    head, dim = shard.geometry.axis_strides
    row = shard.geometry.entry_stride
    geometry: Geometry = replace(shard.geometry, entry_stride=4 * row, axis_strides=(row, dim))
    assert head == 4 * row
    return replace(shard, geometry=geometry)


def test_copied_padding_is_found() -> None:
    found = with_rows(lambda rows: changed(rows, nbytes=rows.nbytes + np.uint64(2)))
    assert any("nobody wanted" in fault or "more than once" in fault for fault in found)


def test_a_row_left_out_is_found() -> None:
    found = with_rows(
        lambda rows: Rows(
            rows.source, *(getattr(rows, name)[1:] for name in Rows.__dataclass_fields__ if name != "source")
        )
    )
    assert [fault for fault in found if "not written" in fault]


def test_a_row_written_twice_is_found() -> None:
    found = with_rows(
        lambda rows: Rows(
            rows.source, *(np.repeat(getattr(rows, n), 2) for n in Rows.__dataclass_fields__ if n != "source")
        )
    )
    assert [fault for fault in found if "more than once" in fault]


@pytest.mark.parametrize("by", [-1, 1, 2, 16], ids=lambda by: f"{by} bytes")
@pytest.mark.parametrize("column", ["source_address", "target_address"])
def test_one_row_at_another_address_is_found(column: str, by: int) -> None:
    assert with_rows(
        lambda rows: changed(rows, **{column: first_only(getattr(rows, column).astype(np.int64), by).astype(np.uint64)})
    )


def test_a_row_outside_every_region_is_found() -> None:
    found = with_rows(lambda rows: changed(rows, target_address=rows.target_address + np.uint64(1 << 40)))
    assert "leaves its region" in found[0]


def test_an_entry_before_the_prefix_is_found() -> None:
    prefill, decode = engine(MODEL), engine(MODEL)
    oracle = Oracle(prefill, decode)
    request = request_between(oracle, 20, start_token=5)
    too_much = plan_transfer(prefill, decode).descriptors(RANK, request.source, request.target, 20, 4)
    assert any("nobody wanted" in fault for fault in oracle.problems(request, {RANK: too_much}))


def test_a_block_with_a_hole_that_is_not_named_is_found() -> None:
    layout = engine(model_of(SlidingWindowSpec(1, 2, 4)), cache=CacheConfig(4, num_blocks=8))
    oracle = Oracle(layout, layout)
    request = Request(12, 0, {"full": np.array([-1, -1, 3])}, {"full": np.array([5, 6, 7])})
    described = plan_transfer(layout, layout).descriptors(RANK, request.source, request.target, 12)
    assert described.incomplete == {"full": (5, 6)} and oracle.problems(request, {RANK: described}) == []
    assert "incomplete" in oracle.problems(request, {RANK: RequestDescriptors(described.rows, {})})[0]


def test_a_built_layout_that_places_otherwise_is_found() -> None:
    layout = engine(model_of(FullAttentionSpec(2, 2, 2)))
    swapped = {"k": layout.rank().shards[1], "v": layout.rank().shards[0]}
    exchanged = with_shards(layout, lambda rank, shard: replace(shard, places=swapped[shard.array.part].places))
    assert layout_problems(layout) == []
    assert layout_problems(exchanged) == ["tp0: full.0 k lies elsewhere", "tp0: full.0 v lies elsewhere"]


def on_real_memory(layout: EngineLayout) -> tuple[EngineLayout, list[np.ndarray]]:
    """The layout with its regions at real buffers, and these."""
    buffers = []
    for rank in layout.ranks:
        mine = [np.zeros(region.nbytes, np.uint8) for region in rank.regions]
        layout = layout.relocated(rank.coordinates, [Region(part.ctypes.data, len(part)) for part in mine])
        buffers += mine
    return layout, buffers


def test_rows_move_real_bytes_between_real_addresses() -> None:
    """The same rows on real memory: what a transport will do with them."""
    prefill, sources = on_real_memory(engine(MODEL, 2))
    decode, targets = on_real_memory(engine(MODEL, 1, CacheConfig(8, "BLNHC", num_blocks=8)))
    for number, buffer in enumerate(sources):
        buffer[:] = np.arange(len(buffer)) * (number + 3) % 251 + 1
    rows = plan_transfer(prefill, decode).descriptors(RANK, [3, 1], [2, 6, 4], 20)
    for part in rows.values():
        for source, target, nbytes in zip(part.source_address, part.target_address, part.nbytes, strict=True):
            ctypes.memmove(int(target), int(source), int(nbytes))
    tokens, layers, parts, heads, dim, item = 20, 2, 2, 4, 2, 2
    assert np.count_nonzero(targets[0]) == rows.total_bytes == tokens * layers * parts * heads * dim * item
