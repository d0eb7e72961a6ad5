from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.layout import Region
from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.regions import MANY_ROWS, REGION_RECORD, RegionTable, outside_error
from kvweave.transport.rows import ReadRows

TABLE = RegionTable().with_regions(
    [Region(2**63, 100), Region(1000, 50), Region(1050, 50), Region(1000, 50, "VRAM", 1), Region(2**64 - 64, 63)]
)


def first_outside(address: list[int], nbytes: list[int], memory: str = "DRAM", device: int = 0) -> int | None:
    return TABLE.first_outside(memory, device, np.array(address, np.uint64), np.array(nbytes, np.uint64))


@pytest.mark.parametrize(
    ("address", "nbytes", "inside"),
    [
        (1000, 50, True),
        (1049, 1, True),
        (1049, 2, False),
        (999, 1, False),
        (1099, 1, True),
        (1100, 1, False),
        (2**63 + 99, 1, True),
        (2**63 + 99, 2, False),
        (2**63 - 1, 1, False),
        (2**64 - 2, 1, True),
        (0, 1, False),
    ],
)
def test_a_row_is_inside_when_one_region_holds_all_of_it(address: int, nbytes: int, inside: bool) -> None:
    assert (first_outside([address], [nbytes]) is None) == inside


def test_the_first_row_outside_is_named() -> None:
    assert first_outside([1000, 1001, 5, 6], [1, 1, 1, 1]) == 2


@pytest.mark.parametrize(
    ("memory", "device", "found"), [("VRAM", 1, None), ("VRAM", 0, 0), ("DRAM", 1, 0), ("DRAM", 0, None)]
)
def test_kind_and_device_are_part_of_the_place(memory: str, device: int, found: int | None) -> None:
    assert first_outside([1010], [10], memory, device) == found


def test_no_rows_are_inside_of_nothing() -> None:
    empty = np.zeros(0, np.uint64)
    assert RegionTable().first_outside("DRAM", 0, empty, empty) is None


@given(st.integers(0, 200), st.integers(1, 100))
def test_inside_agrees_with_plain_search(address: int, nbytes: int) -> None:
    regions = [Region(10, 20), Region(30, 5), Region(40, 100)]
    row = (np.array([address], np.uint64), np.array([nbytes], np.uint64))
    expected = any(
        region.address <= address and address + nbytes <= region.address + region.nbytes for region in regions
    )
    assert (RegionTable().with_regions(regions).first_outside("DRAM", 0, *row) is None) == expected


PLACES = st.sampled_from([999, 1000, 1049, 1050, 1099, 2**63 - 1, 2**63, 2**63 + 99, 2**64 - 64, 2**64 - 2])
SIZES = st.sampled_from([1, 2, 40, 50, 51, 63, 100, 2**63, 2**64 - 1])


@given(
    st.lists(st.tuples(PLACES, SIZES), min_size=1, max_size=20),
    st.sets(st.integers(1, 19)),
    st.booleans(),
)
def test_groups_change_no_answer(rows: list[tuple[int, int]], begins: set[int], rising: bool) -> None:
    """Wherever they begin, and however the rows lie; each row is judged by plain numbers, which do not pass 64 bits."""
    rows = sorted(rows) if rising else rows
    address, nbytes = (np.array(column, np.uint64) for column in zip(*rows, strict=True))
    spans = [(1000, 1050), (1050, 1100), (2**63, 2**63 + 100), (2**64 - 64, 2**64 - 1)]
    outside = [
        row for row, (place, size) in enumerate(rows)
        if not any(start <= place and place + size <= end for start, end in spans)
    ]  # fmt: skip
    expected = outside[0] if outside else None
    own = TABLE.groups("DRAM", 0, address)
    any_groups = np.array([0, *sorted(begin for begin in begins if begin < len(rows))])
    for groups in (None, own, any_groups):
        assert TABLE.first_outside("DRAM", 0, address, nbytes, groups) == expected


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("row", [0, 1, MANY_ROWS, 3 * MANY_ROWS - 1])
@pytest.mark.parametrize("shuffled", [False, True], ids=["rising", "in any order"])
def test_one_row_among_many_that_passes_its_region_is_found(side: str, row: int, shuffled: bool) -> None:
    """Its bytes would lie in the next region, which is another one."""
    count, step = 3 * MANY_ROWS, 64
    regions = [Region(4096 + part * MANY_ROWS * step, MANY_ROWS * step) for part in range(3)]
    table = RegionTable().with_regions(regions)
    order = np.random.default_rng(1).permutation(count) if shuffled else np.arange(count)
    good = 4096 + order.astype(np.uint64) * np.uint64(step)
    size = np.full(count, step, np.uint64)
    assert outside_error(ReadRows(good, good, size), table, table) is None
    wrong = good.copy()
    wrong[row] = 4096 + MANY_ROWS * step - step + 1
    sides = {"source": (wrong, good), "target": (good, wrong)}
    error = outside_error(ReadRows(*sides[side], size), table, table)
    assert error is not None and f"row {row}: the {side}'s" in str(error)


def test_rows_of_a_kind_that_nobody_registered_are_outside_however_many() -> None:
    address = np.arange(2 * MANY_ROWS, dtype=np.uint64)
    rows = ReadRows(address, address, np.ones(2 * MANY_ROWS, np.uint64), source_memory="VRAM", source_device=7)
    assert "row 0: the source's" in str(outside_error(rows, TABLE, TABLE))


@pytest.mark.parametrize(
    "regions",
    [
        [Region(10, 10), Region(19, 10)],
        [Region(10, 10), Region(10, 10)],
        [Region(10, 100), Region(20, 5)],
    ],
    ids=["ends", "the same", "one inside the other"],
)
def test_overlapping_regions_are_rejected(regions: list[Region]) -> None:
    with pytest.raises(TransportError, match="register each byte once") as caught:
        RegionTable().with_regions(regions)
    assert caught.value.kind is TransportErrorKind.REJECTED


@pytest.mark.parametrize(
    "wrong",
    [{"memory": "FILE"}, {"address": -1}, {"nbytes": 0}, {"device": -1}, {"address": 2**64 - 4}],
    ids=["kind", "address", "no bytes", "device", "past 64 bits"],
)
def test_a_region_that_cannot_be_is_rejected(wrong: dict[str, object]) -> None:
    region = SimpleNamespace(**{"address": 8, "nbytes": 8, "memory": "DRAM", "device": 0} | wrong)
    with pytest.raises(TransportError) as caught:
        RegionTable().with_regions([region])
    assert caught.value.kind is TransportErrorKind.REJECTED


@pytest.mark.parametrize(
    "record", [(8, 8, 0, 2), (8, 0, 0, 0), (2**64 - 8, 9, 0, 0)], ids=["kind", "empty", "past 64 bits"]
)
def test_a_peers_record_that_cannot_be_is_rejected(record: tuple[int, int, int, int]) -> None:
    with pytest.raises(TransportError) as caught:
        RegionTable(np.array([record], REGION_RECORD))
    assert caught.value.kind is TransportErrorKind.REJECTED


@pytest.mark.parametrize(("side", "source", "target"), [("source", 5, 1000), ("target", 1000, 5)])
def test_the_error_names_the_side_the_row_and_the_address(side: str, source: int, target: int) -> None:
    rows = ReadRows(*(np.array([value], np.uint64) for value in (source, target, 16)))
    error = outside_error(rows, TABLE, TABLE)
    assert error is not None
    assert error.kind is TransportErrorKind.NOT_REGISTERED
    assert f"row 0: the {side}'s 16 bytes at 0x5" in str(error)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("side", ["source", "target"])
def test_repeated_rows_are_looked_at_as_one_by_one(side: str, shift: int) -> None:
    """The last row of the last repeat ends with its region, or a byte behind it."""
    regions = RegionTable().with_regions([Region(1000, 100), Region(2000, 100)])
    first, last = np.array([1000, 2000], np.uint64), np.array([1000, 2000 + shift], np.uint64)
    pattern = ReadRows(*(np.array(column, np.uint64) for column in ([0, 92], [92, 0], [8, 8])))
    rows = ReadRows.repeated(*((last, first) if side == "source" else (first, last)), pattern)
    found, alone = (outside_error(some, regions, regions) for some in (rows, one_by_one(rows)))
    assert str(found) == str(alone)
    assert (found is None) == (shift == 0)


def one_by_one(rows: ReadRows) -> ReadRows:
    return ReadRows(rows.source_address, rows.target_address, rows.nbytes)
