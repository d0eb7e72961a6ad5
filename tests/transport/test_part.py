"""Batches and their parts are all rows, once and in order; what a batch asks for is what its parts scatter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.layout import Region
from kvweave.transport.gather_request import MOST_PATTERN_PIECES, MOST_REPEATS, MOST_RUNS, GatherRequest
from kvweave.transport.gathering import Gathering
from kvweave.transport.landing import LEAST_CHUNK_BYTES
from kvweave.transport.part import Batch, batches_of
from kvweave.transport.pieces import arranged
from kvweave.transport.regions import RegionTable
from kvweave.transport.rows import ReadRows

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
SIZE = 48
REGIONS = RegionTable().with_regions([Region(MEMORY.ctypes.data, MEMORY.nbytes)])


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
    st.booleans(),
)
def test_parts_move_what_the_rows_do(blocks: list[int], layers: int, shift: int, most: int, one_by_one: bool) -> None:
    """The source gathers from its message what the reader scatters."""
    rows = head_split(blocks, layers, shift)
    rows = dense(rows) if one_by_one else rows
    source, target = rows.source_address, rows.target_address
    covered = 0
    for batch in batches_of(rows, most):
        assert batch.start == covered
        gathering = gathering_of(batch, most)
        for number in range(batch.slots.count):
            part = batch.part(number)
            assert part.start == covered and (part.stop - part.start) * SIZE <= max(most, SIZE)
            covered = part.stop
            assert part.nbytes == (part.stop - part.start) * SIZE
            again = batch.alone(number)
            assert (again.start, again.stop, again.slots.count) == (part.start, part.stop, 1)
            for pieces, addresses in (
                (gathering.pieces(number), source), (part.target, target),
                (gathering_of(again, most).pieces(0), source), (again.part(0).target, target),
            ):  # fmt: skip
                found = np.zeros(part.nbytes, np.uint8)
                pieces.gather(found)
                np.testing.assert_array_equal(found, bytes_at(addresses[part.start : part.stop]))
    assert covered == len(rows)


def gathering_of(batch: Batch, most: int) -> Gathering:
    """What a source makes of its message."""
    return Gathering(GatherRequest.decode(batch.request(7, ()).encode()), REGIONS, max(most, SIZE))


def bytes_at(address: np.ndarray) -> np.ndarray:
    starts = (address - np.uint64(MEMORY.ctypes.data)).tolist()
    return np.concatenate([MEMORY[start : start + SIZE] for start in starts])


def test_repeated_rows_are_asked_for_in_one_message_of_one_layer() -> None:
    [batch] = batches_of(head_split(list(range(60)), 7, 0), 4096)
    assert batch.slots.pieces == 7 * 60 * 8
    assert len(batch.request(7, ()).encode()) < 8 * (7 + 2 * 60) + 100


def large_pattern(blocks: int, repeats: int) -> ReadRows:
    """Blocks of one piece each in random order, repeated."""
    place = 2 * np.random.default_rng(0).permutation(blocks).astype(np.uint64) * np.uint64(64)
    pattern = ReadRows(place, place, np.full(blocks, 64, np.uint64))
    base = np.uint64(1 << 40) + np.arange(repeats, dtype=np.uint64) * np.uint64(1 << 30)
    return ReadRows.repeated(base, base, pattern)


@pytest.mark.parametrize(
    ("blocks", "repeats"), [(MOST_RUNS + 1, 3), (MOST_PATTERN_PIECES + 1, 2), (1, MOST_REPEATS + 1), (MOST_RUNS, 3)]
)
def test_what_no_message_can_name_is_asked_for_in_several(blocks: int, repeats: int) -> None:
    rows = large_pattern(blocks, repeats)
    covered = 0
    for batch in batches_of(rows, 1 << 20):
        found = GatherRequest.decode(batch.request(7, ()).encode())
        address = (found.repeats[:, None] + found.runs.addresses()).ravel()
        address = address[found.start : found.start + found.slots.pieces]
        np.testing.assert_array_equal(address, rows.source_address[batch.start : batch.stop])
        assert batch.start == covered
        covered = batch.stop
    assert covered == len(rows)


def test_the_first_part_is_small() -> None:
    address = (1 + np.arange(1 << 14, dtype=np.uint64)) * np.uint64(8192)
    rows = ReadRows(address, address, np.full(len(address), 4096, np.uint64))
    [batch, *_] = batches_of(rows, 1 << 20)
    assert (batch.part(0).nbytes, batch.part(1).nbytes) == (LEAST_CHUNK_BYTES, 1 << 20)


def test_every_size_has_parts_of_its_own() -> None:
    address = (1 + np.arange(10, dtype=np.uint64)) * np.uint64(100)
    rows = arranged(ReadRows(address, address, np.array([8, 16] * 5, np.uint64)), 1 << 20)
    assert [(batch.start, batch.stop, batch.ends.size) for batch in batches_of(rows, 48)] == [(0, 5, 8), (5, 10, 16)]
    assert not list(batches_of(rows.take(0, 0), 48))
