from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.layout import Geometry
from kvweave.core.runs import MOST_KERNEL_BLOCK_RUNS, Runs, entry_runs, joined, kernel_block_runs
from kvweave.errors import PlanError


def geometry(strides: tuple[int, ...], entry: int = 1000) -> Geometry:
    return Geometry(4, 4, 10000, 4 * entry, entry, strides)


@st.composite
def strides_of(draw: st.DrawFn, extents: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Strides of the axes nested in any order, with or without gaps."""
    strides, reach = [0] * len(extents), item
    for axis in draw(st.permutations(range(len(extents)))):
        strides[axis] = reach + draw(st.sampled_from([0, 0, 4]))
        reach = strides[axis] * extents[axis]
    return tuple(strides)


def offsets(extents: tuple[int, ...], strides: tuple[int, ...], item: int) -> np.ndarray:
    where = np.arange(item)
    for extent, stride in zip(extents, strides, strict=True):
        where = np.add.outer(np.arange(extent) * stride, where).ravel()
    return where


def bytes_of(runs: Runs) -> list[tuple[int, int]]:
    return [
        (int(start) + byte, int(end) + byte) for start, end, size in zip(*runs, strict=True) for byte in range(size)
    ]


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.sampled_from([1, 2, 4]))
def test_runs_move_each_byte_of_an_entry_once(data: st.DataObject, extents: tuple[int, ...], item: int) -> None:
    source, target = (data.draw(strides_of(extents, item)) for _ in range(2))
    axes = np.arange(np.prod(extents)).reshape(extents)
    pairs = set()
    for index in np.ndindex(axes.shape):
        at = [sum(i * s for i, s in zip(index, strides, strict=True)) for strides in (source, target)]
        pairs |= {(at[0] + byte, at[1] + byte) for byte in range(item)}
    runs = entry_runs(extents, item, geometry(source), geometry(target))
    moved = bytes_of(runs)
    assert len(moved) == len(set(moved)) and set(moved) == pairs


@pytest.mark.parametrize(
    ("source", "target", "run", "join"),
    [
        pytest.param((2048, 2), (2048, 2), 128, True, id="head outside tokens on both sides"),
        pytest.param((2048, 2), (128, 2), 128, False, id="head outside and inside tokens"),
        pytest.param((128, 2), (128, 2), 256, False, id="head inside tokens on both sides"),
    ],
)
def test_axes_join_where_both_sides_continue(
    source: tuple[int, ...], target: tuple[int, ...], run: int, join: bool
) -> None:
    entries = [128 if strides[0] == 2048 else 512 for strides in (source, target)]
    sides = geometry(source, entries[0]), geometry(target, entries[1])
    runs = entry_runs((2, 64), 2, *sides)
    assert (set(runs.nbytes.tolist()), runs.joins(*sides)) == ({run}, join)


def test_rows_of_several_boxes_are_one_run_where_both_sides_continue() -> None:
    sides = geometry((1000, 2), 256), geometry((1000, 2), 256)
    runs = entry_runs((2, 64), 2, *sides)
    beside, apart = (joined([runs, runs.moved(128, distance)]) for distance in (128, 500))
    assert beside.nbytes.tolist() == [256, 256] and beside.joins(*sides)
    assert apart.nbytes.tolist() == [128] * 4 and not apart.joins(*sides)


def test_more_pieces_than_any_memory_order_makes_are_refused() -> None:
    with pytest.raises(PlanError, match="262144 pieces"):
        entry_runs((512, 512), 2, geometry((1024, 2)), geometry((2, 1024)))


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple), st.sampled_from([1, 2, 4]))
def test_runs_of_a_kernel_block_move_what_its_entries_move(
    data: st.DataObject, extents: tuple[int, ...], item: int
) -> None:
    """Entries lie anywhere in the page: around, between and inside heads and dims."""
    sides = []
    for _ in range(2):
        entry, *axes = data.draw(strides_of((4, *extents), item))
        sides.append(geometry(tuple(axes), entry))
    entries = entry_runs(extents, item, *sides)
    one_by_one = [entries.moved(number * sides[0].entry_stride, number * sides[1].entry_stride) for number in range(4)]
    block = kernel_block_runs(extents, item, *sides)
    assert block is not None
    assert sorted(bytes_of(block)) == sorted(pair for runs in one_by_one for pair in bytes_of(runs))


def test_kernel_blocks_of_unequal_size_or_many_pieces_have_no_runs() -> None:
    other, many = Geometry(8, 8, 10000, 8000, 1000, (2,)), geometry((16,), 4)
    assert kernel_block_runs((4,), 2, geometry((2,)), other) is None
    assert kernel_block_runs((MOST_KERNEL_BLOCK_RUNS,), 2, many, many) is None
