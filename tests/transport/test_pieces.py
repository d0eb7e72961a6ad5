"""What was gathered is what plain indexing finds, and scattering puts it where plain indexing would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.transport.pieces import MOST_SIZES, arranged, count_sizes, gather, scatter
from kvweave.transport.rows import ReadRows

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 18, np.uint8)
BASE = MEMORY.ctypes.data


def addresses(offsets: np.ndarray) -> np.ndarray:
    return np.asarray(offsets, np.uint64) + np.uint64(BASE)


def by_indexing(offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    parts = [MEMORY[start : start + size] for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]
    return np.concatenate(parts)


def places(kind: str) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(1)
    sizes = {"mixed": np.sort(dice.integers(1, 9, 200)) * 100, "one": np.array([4096])}.get(kind, np.full(200, 512))
    pitch = len(MEMORY) // len(sizes)
    offsets = dice.permutation(len(sizes)) * pitch
    if kind != "aligned":
        offsets = offsets + dice.integers(0, pitch - int(sizes.max()), len(sizes))
    elif kind == "aligned":
        offsets = offsets // 512 * 512
    if kind == "two regions":
        offsets = np.sort(dice.permutation(len(sizes))) * 512 + np.repeat([0, 7], 100)
    return offsets, sizes.astype(np.uint64)


KINDS = ("aligned", "unaligned", "two regions", "mixed", "one")


@pytest.mark.parametrize("kind", KINDS)
def test_gathered_pieces_lie_one_behind_the_other(kind: str) -> None:
    offsets, sizes = places(kind)
    buffer = np.zeros(int(sizes.sum()) + 5, np.uint8)
    gather(addresses(offsets), sizes, buffer)
    np.testing.assert_array_equal(buffer[:-5], by_indexing(offsets, sizes))
    assert not buffer[-5:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_scattered_pieces_stand_at_their_places_and_nothing_else_changes(kind: str) -> None:
    offsets, sizes = places(kind)
    target, expected = np.zeros_like(MEMORY), np.zeros_like(MEMORY)
    packed = by_indexing(offsets, sizes)
    scatter(packed, np.asarray(offsets, np.uint64) + np.uint64(target.ctypes.data), sizes)
    for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        expected[start : start + size] = MEMORY[start : start + size]
    np.testing.assert_array_equal(target, expected)


def all_bytes(rows: ReadRows) -> list[tuple[int, int]]:
    return sorted(
        (source + i, target + i)
        for source, target, size in zip(
            rows.source_address.tolist(), rows.target_address.tolist(), rows.nbytes.tolist(), strict=True
        )
        for i in range(size)
    )


@given(st.lists(st.integers(1, 300), min_size=1, max_size=80))
def test_arranged_rows_copy_the_same_bytes_in_few_sizes(sizes: list[int]) -> None:
    nbytes = np.array(sizes, np.uint64)
    place = np.cumsum(nbytes) - nbytes
    rows = ReadRows(place + np.uint64(1000), place[::-1].copy() + np.uint64(10**6), nbytes)
    found = arranged(rows, 64)
    assert all_bytes(found) == all_bytes(rows)
    assert count_sizes(found.nbytes) <= MOST_SIZES and found.nbytes.max() <= 64


def test_rows_of_one_size_stay_as_they_are() -> None:
    rows = ReadRows(*(np.arange(3, dtype=np.uint64) * np.uint64(64),) * 2, np.full(3, 64, np.uint64))
    assert arranged(rows, 64) is rows


def test_no_pieces_have_no_sizes() -> None:
    assert count_sizes(np.zeros(0, np.uint64)) == 0
