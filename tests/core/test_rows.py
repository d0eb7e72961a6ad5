"""Rows that are runs at the places of layers say the same as their columns, and are joined as columns are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.bundle import LayerPlaces
from kvweave.core.parallel import RankCoordinates
from kvweave.core.rows import FEW_ROWS, Rows, coalesced, in_layers
from kvweave.core.runs import Runs

RANK = RankCoordinates(0, 0, 0)
BASE = 1 << 40


def places_of(*sources: int, target_gap: int = 0, one_region: bool = True) -> LayerPlaces:
    source = np.array(sources, np.uint64) + np.uint64(BASE)
    target = source + np.arange(len(sources), dtype=np.uint64) * np.uint64(target_gap) + np.uint64(1 << 41)
    region = np.zeros(len(sources), np.int32) if one_region else np.arange(len(sources), dtype=np.int32)
    return LayerPlaces(source, target, region, region)


def runs_of(*runs: tuple[int, int, int]) -> Runs:
    return Runs(*(np.array(column, np.int64) for column in zip(*runs, strict=True)))


def dense(rows: Rows) -> Rows:
    return replace(rows, nbytes=rows.nbytes)


def table(rows: Rows) -> list[tuple[int, ...]]:
    columns = (rows.source_address, rows.target_address, rows.nbytes, rows.source_region, rows.target_region)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def bytes_of(rows: Rows) -> list[tuple[int, int]]:
    return sorted((s + n, t + n) for s, t, size, *_ in table(rows) for n in range(size))


RUNS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=6)


@given(
    RUNS,
    st.lists(st.integers(0, 90), min_size=1, max_size=5, unique=True),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([0, FEW_ROWS]),
)
def test_rows_of_layers_move_the_bytes_of_their_columns(
    runs: list[tuple[int, int, int]], sources: list[int], gap: int, one_region: bool, few: int
) -> None:
    places = places_of(*sorted(sources), target_gap=gap, one_region=one_region)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvweave.core.rows.FEW_ROWS", few)
        rows = in_layers(RANK, places, runs_of(*runs).merged())
    assert (rows.repeats is None) == bool(few)
    assert len(rows) == len(rows.nbytes) and rows.total_bytes == int(rows.nbytes.sum())
    expected = sorted(
        (int(source) + s + n, int(target) + t + n)
        for source, target in zip(places.source, places.target, strict=True)
        for s, t, size in runs
        for n in range(size)
    )
    assert bytes_of(rows) == expected
    assert table(coalesced([rows])) == table(coalesced([dense(rows)]))
    assert bytes_of(coalesced([rows])) == expected


def test_layers_that_stay_apart_are_no_columns() -> None:
    runs = runs_of(*((16 * n, 16 * n, 8) for n in range(FEW_ROWS // 2)))
    rows = in_layers(RANK, places_of(0, 1 << 20), runs)
    assert coalesced([rows]) is rows and rows.repeats is not None
    assert len(rows) == FEW_ROWS and "nbytes" not in vars(rows)
    with pytest.raises(AttributeError):
        _ = rows.anything  # type: ignore[attr-defined]


def test_layers_that_continue_are_joined_within_a_region() -> None:
    runs = runs_of((0, 0, 8))
    assert len(coalesced([in_layers(RANK, places_of(0, 8, 16), runs)])) == 1
    assert len(coalesced([in_layers(RANK, places_of(0, 8, 16, one_region=False), runs)])) == 3
    assert len(coalesced([in_layers(RANK, places_of(0, 8, 16, target_gap=1), runs)])) == 3


def test_layers_between_one_another_are_sorted() -> None:
    rows = coalesced([in_layers(RANK, places_of(0, 8), runs_of((0, 0, 8), (16, 16, 8)))])
    assert table(rows) == [(BASE, BASE + (1 << 41), 32, 0, 0)]


def test_arrays_of_one_source_are_joined() -> None:
    here, there = (in_layers(RANK, places_of(start), runs_of((0, 0, 8))) for start in (8, 0))
    assert table(coalesced([here, there])) == [(BASE, BASE + (1 << 41), 16, 0, 0)]


@given(
    st.lists(st.integers(0, 400).map(lambda number: 16 * number), min_size=2, max_size=8, unique=True),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(0, 1),
)
def test_arrays_in_regions_of_their_own_are_one_pattern_where_their_runs_are_alike(
    sources: list[int], gap: tuple[int, int], other: int
) -> None:
    """Whatever order their layers have; the bytes are those of their columns."""
    runs = [(0, 0, 8), (8 + gap[0], 8 + gap[1], 8 - gap[0])]
    middle = len(sources) // 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvweave.core.rows.FEW_ROWS", 0)
        keys = in_layers(RANK, places_of(*sorted(sources[:middle])), runs_of(*runs).merged())
        values = in_layers(RANK, places_of(*sorted(sources[middle:])), runs_of(*runs[other:]).merged())
    found = coalesced([keys, values])
    assert table(found) == table(coalesced([dense(keys), dense(values)]))


def test_keys_and_values_in_regions_of_their_own_are_no_columns() -> None:
    runs = runs_of(*((16 * n, 16 * n, 8) for n in range(FEW_ROWS)))
    keys, values = (in_layers(RANK, places_of(start, start + (1 << 22)), runs) for start in (0, 1 << 21))
    rows = coalesced([values, keys])
    assert rows.repeats is not None and len(rows) == 4 * FEW_ROWS and "nbytes" not in vars(rows)
