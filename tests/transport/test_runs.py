"""Runs stand for their pieces, in order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvweave.transport.runs import NO_RUNS, Runs, runs_of

BASE = 1 << 30
PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=60)


@given(PLACES)
def test_they_are_the_pieces_that_they_were_made_of(places: list[int]) -> None:
    address = np.array(places, np.uint64) * np.uint64(8) + np.uint64(BASE)
    runs = runs_of(address)
    assert runs.addresses().tolist() == address.tolist() and runs.pieces == len(places)
    assert len(runs.address) <= len(places)


def test_runs_of_unlike_length_are_their_pieces_too() -> None:
    runs = Runs(np.array([100, 7], np.uint64), np.array([10, 1], np.uint32), np.array([2, 3], np.uint32))
    assert runs.addresses().tolist() == [100, 110, 7, 8, 9] and runs.pieces == 5


def test_a_head_split_takes_one_run_a_block() -> None:
    blocks = np.array([90, 3, 41, 42, 7], np.uint64) * np.uint64(16 * 2048)
    runs = runs_of((blocks[:, None] + np.arange(16, dtype=np.uint64) * np.uint64(2048)).ravel())
    assert len(runs.address) == 4  # two of the blocks are neighbours
    assert runs.pieces == 80


def test_falling_addresses_and_far_ones_are_no_run() -> None:
    for step in (-64, 2**32):
        address = np.array([BASE + 4 * 2**33 + number * step for number in range(4)], np.uint64)
        runs = runs_of(address)
        assert runs.addresses().tolist() == address.tolist() and len(runs.count) == 0


def test_no_runs_have_no_pieces() -> None:
    assert NO_RUNS.pieces == 0 and not len(NO_RUNS.addresses())
