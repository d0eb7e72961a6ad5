"""Parts of repeated rows are those that the same rows would have, one by one; runs stay whole where they are alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.transport.landing import LEAST_CHUNK_BYTES
from kvweave.transport.part import parts_of
from kvweave.transport.pieces import arranged
from kvweave.transport.rows import ReadRows

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
SIZE = 48


def head_split(blocks: list[int], layers: int, shift: int, size: int = SIZE) -> ReadRows:
    """Eight pieces of each block, 4 sizes apart at the source and 2 at the target, in every layer."""
    place = np.array(blocks, np.uint64)[:, None] * np.uint64(8)
    piece = np.arange(8, dtype=np.uint64)
    pattern = ReadRows(
        ((place + piece) * np.uint64(4 * size)).ravel(), ((place + piece) * np.uint64(2 * size)).ravel(),
        np.full(8 * len(blocks), size, np.uint64),
    )  # fmt: skip
    layer = np.arange(layers, dtype=np.uint64)
    base = np.uint64(MEMORY.ctypes.data)
    return ReadRows.repeated(base + layer * np.uint64(1 << 17), base + layer * np.uint64((1 << 17) + shift), pattern)


def dense(rows: ReadRows) -> ReadRows:
    return ReadRows(rows.source_address, rows.target_address, rows.nbytes)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True),
    st.integers(1, 7),
    st.sampled_from([0, 48, 5]),
    st.integers(1, 50_000),
)
def test_parts_of_repeated_rows_move_what_the_rows_do(blocks: list[int], layers: int, shift: int, most: int) -> None:
    rows = head_split(blocks, layers, shift)
    source, target = rows.source_address, rows.target_address
    covered = 0
    for part in parts_of(rows, most):
        assert part.start == covered and (part.stop - part.start) * SIZE <= max(most, SIZE)
        covered = part.stop
        assert part.nbytes == part.target.nbytes == len(part) * SIZE
        assert part.ends.most_runs(part.start, part.stop) >= len(part.source.address)
        assert part.source.addresses().tolist() == source[part.start : part.stop].tolist()
        found = np.zeros(part.nbytes, np.uint8)
        part.target.gather(found)
        starts = (target[part.start : part.stop] - np.uint64(MEMORY.ctypes.data)).tolist()
        np.testing.assert_array_equal(found, np.concatenate([MEMORY[start : start + SIZE] for start in starts]))
    assert covered == len(rows)


@pytest.mark.parametrize("made", [lambda rows: rows, dense], ids=["repeated", "one by one"])
def test_runs_that_are_alike_are_not_cut(made: object) -> None:
    rows = made(head_split([9, 3, 7, 1, 5], 4, 0, size=256))  # type: ignore[operator]
    parts = list(parts_of(rows, 20 * 256))
    assert [part.stop - part.start for part in parts] == [16] * 10
    assert all(part.source.unit == 8 for part in parts)


def test_the_first_part_is_small() -> None:
    address = (1 + np.arange(1 << 14, dtype=np.uint64)) * np.uint64(8192)
    rows = ReadRows(address, address, np.full(len(address), 4096, np.uint64))
    first, second, *_ = parts_of(rows, 1 << 20)
    assert first.nbytes == LEAST_CHUNK_BYTES and second.nbytes == 1 << 20


def test_every_size_has_parts_of_its_own() -> None:
    address = (1 + np.arange(10, dtype=np.uint64)) * np.uint64(100)
    rows = arranged(ReadRows(address, address, np.array([8, 16] * 5, np.uint64)), 1 << 20)
    assert [(part.start, part.stop, part.ends.size) for part in parts_of(rows, 48)] == [
        (0, 5, 8), (5, 8, 16), (8, 10, 16),
    ]  # fmt: skip
    assert not list(parts_of(rows.take(0, 0), 48))
