"""Costs come out of trials as they went in, and the cheaper way is chosen."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvweave.core.layout import Region
from kvweave.transport.agent_data import RingPlace
from kvweave.transport.rates import (
    HELP,
    LEAST_BYTE_SECONDS,
    MOST_BYTE_SECONDS,
    MOST_PIECE_SECONDS,
    MOST_START_SECONDS,
    Cost,
    Rates,
    Trials,
    copies_of_our_own,
)
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows
from kvweave.transport.staging_ring import STATUS_BYTES

REGIONS = RegionTable().with_regions([Region(1 << 50, 64 << 20)])
DIRECT = Cost(20e-6, 3e-6, 0.1e-9)
COPY = Cost(0.0, 0.05e-6, 0.1e-9)
RATES = Rates.of(DIRECT, COPY, COPY, 1 << 20)


def rows(size: int, total: int = 64 << 20) -> ReadRows:
    address = np.arange(total // size, dtype=np.uint64) * np.uint64(size)
    return ReadRows(address, address, np.full(len(address), size, np.uint64))


@pytest.mark.parametrize(
    ("size", "staged"),
    [(256, True), (4 << 10, True), (8 << 10, True), (64 << 10, False), (256 << 10, False), (64 << 20, False)],
    ids="{}".format,
)
def test_small_pieces_are_staged_and_large_ones_are_not(size: int, staged: bool) -> None:
    assert (RATES.staged_seconds(rows(size)) < RATES.direct_seconds(rows(size))) is staged


def test_a_few_small_pieces_are_not_worth_asking_for() -> None:
    few = rows(256, 100 * 256)
    assert RATES.staged_seconds(few) > RATES.direct_seconds(few)


def test_trials_find_the_costs_that_they_were_made_with() -> None:
    landing = np.zeros(1 << 20, np.uint8)
    trials = Trials(REGIONS, RingPlace(1 << 30, 16, 1 << 20), landing)
    while trials.waiting:
        number, tried = trials.waiting.popleft()
        trials.note(number, DIRECT.seconds(len(tried) if number == 1 else 0, tried.total_bytes))
    found = trials.cost()
    assert (found.start, found.byte) == pytest.approx((DIRECT.start, DIRECT.byte), rel=1e-3)
    assert found.piece == pytest.approx(DIRECT.piece, rel=0.02)


def test_what_is_counted_was_touched_before_and_touching_does_not_count() -> None:
    trials = Trials(REGIONS, RingPlace(1 << 30, 16, 1 << 20), np.zeros(1 << 20, np.uint8))
    touched: set[int] = set()
    while trials.waiting:
        number, tried = trials.waiting.popleft()
        ends = {*tried.source_address.tolist(), *(tried.source_address + tried.nbytes - np.uint64(1)).tolist()}
        if number == 1:
            assert ends <= touched
        if number == 3:
            touched |= ends
        trials.note(number, 9.0 if number == 3 else DIRECT.seconds(len(tried) if number == 1 else 0, tried.total_bytes))
    assert trials.cost().piece == pytest.approx(DIRECT.piece, rel=0.02)


def bounds_of(trials: Trials, landing: np.ndarray) -> tuple[int, int]:
    """Where the trials read; they land in the landing."""
    for _, tried in trials.waiting:
        assert tried.target_address.min() >= landing.ctypes.data
        assert (tried.target_address + tried.nbytes).max() <= landing.ctypes.data + landing.nbytes
    starts, ends = zip(
        *((tried.source_address.min(), (tried.source_address + tried.nbytes).max()) for _, tried in trials.waiting),
        strict=True,
    )
    return int(min(starts)), int(max(ends))


@pytest.mark.parametrize("nbytes", [1 << 20, (1 << 20) + 7, 1 << 40], ids="{} bytes".format)
def test_trials_read_the_largest_region_of_main_memory(nbytes: int) -> None:
    regions = RegionTable().with_regions(
        [Region(1 << 50, nbytes), Region(1 << 20, 1 << 20), Region(1 << 55, 1 << 45, "VRAM")]
    )
    landing = np.zeros(1 << 20, np.uint8)
    start, end = bounds_of(Trials(regions, RingPlace(1 << 30, 16, 1 << 20), landing), landing)
    assert start >= 1 << 50 and end <= (1 << 50) + nbytes


@pytest.mark.parametrize("slot_bytes", [1, 4096, 1 << 20, 64 << 20], ids="slots of {} bytes".format)
def test_trials_of_small_regions_stay_inside_the_ring(slot_bytes: int) -> None:
    regions = RegionTable().with_regions([Region(1 << 50, 100), Region(1 << 55, 1 << 45, "VRAM")])
    landing = np.zeros(1 << 20, np.uint8)
    place = RingPlace(1 << 30, 16, slot_bytes)
    start, end = bounds_of(Trials(regions, place, landing), landing)
    assert start >= place.address + STATUS_BYTES and end <= place.address + STATUS_BYTES + 16 * slot_bytes


@pytest.mark.parametrize("seconds", [0.0, 30.0], ids=["a clock that stands still", "a machine that is busy"])
def test_measured_costs_are_bounded(seconds: float) -> None:
    trials = Trials(REGIONS, RingPlace(1 << 30, 16, 1 << 20), np.zeros(1 << 20, np.uint8))
    for number, factor in ((0, 1), (1, 2), (2, 3)):
        trials.note(number, factor * seconds)
    found = trials.cost()
    assert found.start <= MOST_START_SECONDS and found.piece <= MOST_PIECE_SECONDS
    assert LEAST_BYTE_SECONDS <= found.byte <= MOST_BYTE_SECONDS


def test_copying_costs_something() -> None:
    for cost in copies_of_our_own(time.perf_counter):
        assert cost.piece > 0 and cost.byte > 0


def test_mapped_slots_cost_their_reader_no_reading() -> None:
    direct, gathering, scattering = Cost(0.0, 0.0, 3e-10), Cost(0.0, 1e-7, 2e-10), Cost(0.0, 2e-7, 1e-10)
    read, mapped = (Rates.of(direct, gathering, scattering, 1 << 20, mapped=mapped) for mapped in (False, True))
    assert (read.staged.byte, mapped.staged.byte) == pytest.approx((4e-10, 2e-10))


def test_helpers_share_in_what_has_several_strokes() -> None:
    alone, helped = (Rates(DIRECT, DIRECT, 1 << 20, helpers) for helpers in (0, 3))
    small, large = rows(4096, 1 << 20), rows(4096, 64 << 20)
    assert helped.direct_seconds(small) == alone.direct_seconds(small)
    assert helped.direct_seconds(large) == pytest.approx(alone.direct_seconds(large) / (1 + 3 * HELP))
