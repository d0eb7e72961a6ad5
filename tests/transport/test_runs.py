"""Runs stand for their pieces in order, however they are cut, joined and repeated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.transport.gather_request import GatherRequest
from kvweave.transport.runs import NO_RUNS, Runs, runs_of

BASE = 1 << 30
PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=60)


def addresses(places: list[int]) -> np.ndarray:
    return np.array(places, np.uint64) * np.uint64(8) + np.uint64(BASE)


@given(PLACES, st.integers(0, 60), st.integers(0, 60))
def test_a_part_of_them_is_those_pieces(places: list[int], start: int, stop: int) -> None:
    runs = runs_of(addresses(places)).take(min(start, len(places)), min(stop, len(places)))
    expected = addresses(places)[start:stop].tolist()
    assert runs.addresses().tolist() == expected and runs.pieces == len(expected)
    if expected:
        assert GatherRequest.decode(GatherRequest(1, 8, runs).encode()).runs.addresses().tolist() == expected


@given(PLACES, st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_repeated_they_are_their_pieces_from_every_address(places: list[int], first: list[int]) -> None:
    layers, runs = np.array(first, np.uint64) * np.uint64(1 << 20), runs_of(addresses(places))
    expected = (layers[:, None] + addresses(places)).ravel()
    assert runs.repeated(layers).addresses().tolist() == expected.tolist()


@pytest.mark.parametrize("stride", [64, 96, 100])
@pytest.mark.parametrize("counts", [(6, 6, 6), (6, 2, 4), (6, 5, 3)], ids=["alike", "of one unit", "of none"])
def test_their_places_are_gathered_as_their_addresses_are(stride: int, counts: tuple[int, ...]) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 1 << 14, np.uint8)
    first = np.array([4096, 64, 9000], np.uint64)
    runs = Runs(
        first + np.uint64(memory.ctypes.data), np.full(3, stride, np.uint32),
        np.array(counts, np.uint32),
    )  # fmt: skip
    assert runs.unit == math.gcd(*counts)
    found = np.zeros(runs.pieces * 32, np.uint8)
    runs.at_places(32).gather(found)
    starts = (runs.addresses() - np.uint64(memory.ctypes.data)).tolist()
    np.testing.assert_array_equal(found, np.concatenate([memory[start : start + 32] for start in starts]))


def test_a_head_split_takes_one_run_a_block() -> None:
    blocks = np.array([90, 3, 41, 42, 7], np.uint64) * np.uint64(16 * 2048)
    runs = runs_of((blocks[:, None] + np.arange(16, dtype=np.uint64) * np.uint64(2048)).ravel())
    assert len(runs.address) == 4  # two of the blocks are neighbours
    assert runs.pieces == 80 and runs.unit == 16


def test_falling_addresses_and_far_ones_are_no_run() -> None:
    for step in (-64, 2**32):
        address = np.array([BASE + 4 * 2**33 + number * step for number in range(4)], np.uint64)
        runs = runs_of(address)
        assert runs.addresses().tolist() == address.tolist() and len(runs.count) == 0


def test_no_runs_have_no_pieces() -> None:
    assert NO_RUNS.pieces == 0 and not len(NO_RUNS.addresses())
