"""Intervals behave like sets of integers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.interval import Interval, box_contains, box_intersection
from kvweave.errors import LayoutError

starts, lengths = st.integers(0, 2**64), st.integers(0, 2**40)
intervals = st.tuples(starts, lengths).map(lambda ends: Interval(ends[0], ends[0] + ends[1]))
small = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: Interval(min(ends), max(ends)))
boxes = st.tuples(small, small)


def members(interval: Interval) -> set[int]:
    return set(range(interval.start, interval.stop))


def cells(box: tuple[Interval, ...]) -> set[tuple[int, int]]:
    return {(first, second) for first in members(box[0]) for second in members(box[1])}


@given(small, small)
def test_an_intersection_holds_what_both_hold(one: Interval, other: Interval) -> None:
    assert members(one.intersection(other)) == members(one) & members(other)


@given(intervals, intervals)
def test_an_intersection_is_inside_both_at_any_address(one: Interval, other: Interval) -> None:
    common = one.intersection(other)
    assert one.contains(common)
    assert other.contains(common)


@given(small, small)
def test_containing_is_being_a_superset(one: Interval, other: Interval) -> None:
    assert one.contains(other) == (members(one) >= members(other))


@given(small, st.lists(small, max_size=4))
def test_a_cut_gives_every_integer_once_in_order(whole: Interval, others: list[Interval]) -> None:
    pieces = whole.cut(others)
    assert [number for piece in pieces for number in range(piece.start, piece.stop)] == sorted(members(whole))
    assert all(len(piece) > 0 for piece in pieces)
    assert all(before.stop == after.start for before, after in pairwise(pieces))


@given(small, st.lists(small, max_size=4))
def test_a_piece_of_a_cut_is_inside_another_interval_or_apart_from_it(whole: Interval, others: list[Interval]) -> None:
    for piece in whole.cut(others):
        assert all(other.contains(piece) or not len(piece.intersection(other)) for other in others)


@given(boxes, boxes)
def test_boxes_meet_where_all_their_axes_do(one: tuple[Interval, ...], other: tuple[Interval, ...]) -> None:
    common = box_intersection(one, other)
    assert (cells(common) if common else set()) == cells(one) & cells(other)


@given(boxes, boxes)
def test_a_box_inside_another_has_no_cell_outside(outer: tuple[Interval, ...], inner: tuple[Interval, ...]) -> None:
    if box_contains(outer, inner):
        assert cells(outer) >= cells(inner)
    elif cells(inner):
        assert not cells(outer) >= cells(inner)


@given(intervals)
def test_an_interval_shows_itself_half_open(interval: Interval) -> None:
    assert str(interval) == f"[{interval.start}, {interval.stop})"


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3)], ids=["negative start", "stop before start"])
def test_an_impossible_interval_is_refused_with_both_ends(start: int, stop: int) -> None:
    with pytest.raises(LayoutError, match=rf"start {start} and stop {stop}"):
        Interval(start, stop)
