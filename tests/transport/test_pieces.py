"""What was gathered is what plain indexing finds, and scattering puts it where plain indexing would."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.transport.pieces import MOST_SIZES, Pieces, arranged, stretches
from kvweave.transport.rows import ReadRows

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 18, np.uint8)
BASE = MEMORY.ctypes.data


def addresses(offsets: np.ndarray) -> np.ndarray:
    return np.asarray(offsets, np.uint64) + np.uint64(BASE)


def by_indexing(offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    parts = [MEMORY[start : start + size] for start, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]
    return np.concatenate(parts)


PITCHES = {"aligned": 512, "apart": 4096, "with one remainder": 1024, "overlapping matrix": 600}
REMAINDERS = {"none": [0], "one": [7], "two regions": [0, 7], "changing at every piece": [0, 13, 5]}


def places(pitch: int, remainders: list[int], size: int) -> np.ndarray:
    """Pieces in random order; the remainder changes in the middle, or at every piece where there are many."""
    count = len(MEMORY) // pitch - 1
    order = np.random.default_rng(pitch).permutation(count) * pitch
    repeated = np.tile(remainders, count)[:count] if len(remainders) > 2 else np.repeat(remainders, count)[:count]
    return order + repeated if len(remainders) > 1 else order + remainders[0]


@pytest.mark.parametrize("size", [1, 8, 256, 512], ids="{} bytes".format)
@pytest.mark.parametrize("remainders", REMAINDERS.values(), ids=REMAINDERS)
@pytest.mark.parametrize("pitch", PITCHES.values(), ids=PITCHES)
def test_pieces_are_gathered_and_scattered_as_by_indexing(pitch: int, remainders: list[int], size: int) -> None:
    offsets = places(pitch, remainders, size)[:: 2 if size + max(remainders) > pitch else 1]
    sizes = np.full(len(offsets), size)
    packed, buffer = by_indexing(offsets, sizes), np.full(len(offsets) * size + 5, 3, np.uint8)
    Pieces(addresses(offsets), size).gather(buffer)
    np.testing.assert_array_equal(buffer[:-5], packed)
    assert (buffer[-5:] == 3).all()
    target, expected = np.zeros_like(MEMORY), np.zeros_like(MEMORY)
    Pieces(np.asarray(offsets, np.uint64) + np.uint64(target.ctypes.data), size).scatter(buffer)
    for start in offsets.tolist():
        expected[start : start + size] = MEMORY[start : start + size]
    np.testing.assert_array_equal(target, expected)


def mapped(nbytes: int, shift: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, nbytes + shift), np.uint8)[shift:]


def on_the_heap(nbytes: int) -> np.ndarray:
    """Beginning at a multiple of 64, as mapped memory does."""
    memory = np.frombuffer(bytearray(nbytes + 64), np.uint8)
    return memory[-memory.ctypes.data % 64 :][:nbytes]


@pytest.mark.parametrize("shifts", [1, 7], ids=["one remainder", "many remainders"])
@pytest.mark.parametrize("size", [64, 1000, 1 << 17], ids="{} bytes".format)
def test_pieces_far_apart_are_copied_and_nothing_between_them(size: int, shifts: int) -> None:
    """On the heap and in mapped memory, with what they are copied from, and much that is not mapped, between them."""
    near = [on_the_heap(size) for _ in range(20)]
    parts = near + [mapped(size, number % shifts) for number in range(20)]
    address = np.array([part.ctypes.data for part in parts], np.uint64)
    packed = mapped(len(parts) * size, 0)
    packed[:] = np.random.default_rng(0).integers(0, 256, len(packed), np.uint8)
    assert address.min() < packed.ctypes.data < address.max()
    Pieces(address, size).scatter(packed)
    np.testing.assert_array_equal(np.concatenate([part[:size] for part in parts]), packed)
    found = mapped(len(packed), 0)
    Pieces(address, size).gather(found)
    np.testing.assert_array_equal(found, packed)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=80), st.integers(1, 64), st.data())
def test_some_of_the_pieces_are_those_pieces(offsets: list[int], size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(offsets) - 1))
    stop = data.draw(st.integers(start + 1, len(offsets)))
    taken = Pieces(addresses(np.array(offsets)), size).take(start, stop)
    buffer = np.zeros(taken.nbytes, np.uint8)
    taken.gather(buffer)
    np.testing.assert_array_equal(buffer, by_indexing(np.array(offsets[start:stop]), np.full(stop - start, size)))


@given(st.lists(st.integers(4096, 2**47), min_size=1, max_size=80), st.sampled_from([1, 300, 1 << 18, 1 << 20]))
def test_pieces_may_lie_anywhere(addresses: list[int], size: int) -> None:
    """Nothing is looked at before they are copied."""
    assert Pieces(np.array(addresses, np.uint64), size).nbytes == len(addresses) * size


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
    assert len(list(stretches(found.nbytes))) <= MOST_SIZES and found.nbytes.max() <= 64


def test_long_rows_are_cut_into_whole_parts_and_a_rest() -> None:
    found = arranged(ReadRows(*(np.array([1000, 5000], np.uint64),) * 2, np.array([150, 150], np.uint64)), 64)
    assert found.nbytes.tolist() == [22, 22, 64, 64, 64, 64]


def test_rows_of_one_size_stay_as_they_are() -> None:
    rows = ReadRows(*(np.arange(3, dtype=np.uint64) * np.uint64(64),) * 2, np.full(3, 64, np.uint64))
    assert arranged(rows, 64) is rows
