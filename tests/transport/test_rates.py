"""Costs come out of trials as they went in, and the cheaper way is chosen."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvweave.transport.agent_data import RingPlace
from kvweave.transport.rates import (
    LEAST_BYTE_SECONDS,
    MOST_BYTE_SECONDS,
    MOST_PIECE_SECONDS,
    MOST_START_SECONDS,
    Cost,
    Rates,
    Trials,
    copying,
)
from kvweave.transport.rows import ReadRows
from kvweave.transport.staging_ring import STATUS_BYTES

DIRECT = Cost(20e-6, 3e-6, 0.1e-9)
COPY = Cost(0.0, 0.05e-6, 0.1e-9)
RATES = Rates.of(DIRECT, COPY, COPY, 1 << 20)


def rows(size: int, total: int = 64 << 20) -> ReadRows:
    address = np.arange(total // size, dtype=np.uint64) * np.uint64(size)
    return ReadRows(address, address, np.full(len(address), size, np.uint64))


@pytest.mark.parametrize(
    ("size", "staged"),
    [(256, True), (4 << 10, True), (16 << 10, True), (64 << 10, False), (256 << 10, False), (64 << 20, False)],
    ids="{}".format,
)
def test_small_pieces_are_staged_and_large_ones_are_not(size: int, staged: bool) -> None:
    assert RATES.prefers_staged(rows(size)) is staged


def test_a_few_small_pieces_are_not_worth_asking_for() -> None:
    assert not RATES.prefers_staged(rows(256, 100 * 256))


def test_trials_find_the_costs_that_they_were_made_with() -> None:
    landing = np.zeros(1 << 20, np.uint8)
    trials = Trials(RingPlace(1 << 30, 16, 1 << 20), landing)
    while trials.waiting:
        number, tried = trials.waiting.popleft()
        trials.note(number, DIRECT.seconds(len(tried) - 1, tried.total_bytes - 64))
    found = trials.cost()
    assert (found.start, found.byte) == pytest.approx((DIRECT.start, DIRECT.byte), rel=1e-3)
    assert found.piece == pytest.approx(DIRECT.piece, rel=0.02)


@pytest.mark.parametrize("slot_bytes", [4096, 1 << 20, 64 << 20], ids="slots of {} bytes".format)
def test_trials_stay_inside_one_slot_and_the_landing(slot_bytes: int) -> None:
    landing = np.zeros(1 << 20, np.uint8)
    place = RingPlace(1 << 30, 16, slot_bytes)
    first, end = place.address + STATUS_BYTES, landing.ctypes.data
    for _, tried in Trials(place, landing).waiting:
        assert tried.source_address.min() >= first
        assert (tried.source_address + tried.nbytes).max() <= first + slot_bytes
        assert tried.target_address.min() >= end and (tried.target_address + tried.nbytes).max() <= end + landing.nbytes


@pytest.mark.parametrize("seconds", [0.0, 30.0], ids=["a clock that stands still", "a machine that is busy"])
def test_measured_costs_are_bounded(seconds: float) -> None:
    trials = Trials(RingPlace(1 << 30, 16, 1 << 20), np.zeros(1 << 20, np.uint8))
    for number, factor in ((0, 1), (1, 2), (2, 3)):
        trials.note(number, factor * seconds)
    found = trials.cost()
    assert found.start <= MOST_START_SECONDS and found.piece <= MOST_PIECE_SECONDS
    assert LEAST_BYTE_SECONDS <= found.byte <= MOST_BYTE_SECONDS


def test_copying_costs_something() -> None:
    for cost in copying(time.perf_counter):
        assert cost.piece > 0 and cost.byte > 0
