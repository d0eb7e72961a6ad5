from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.errors import LocalProtocolError
from kvweave.transport.rows import ReadRows, cut_for_posts, split_into_posts


def rows_of(*nbytes: int, source: int = 2**63, target: int = 2**62) -> ReadRows:
    """Rows one after the other in the source, 10 bytes apart in the target."""
    sizes = np.array(nbytes, np.uint64)
    before = np.cumsum(sizes, dtype=np.uint64) - sizes
    gaps = np.arange(len(sizes), dtype=np.uint64) * np.uint64(10)
    return ReadRows(before + np.uint64(source), before + gaps + np.uint64(target), sizes, "VRAM", 3, "DRAM", 5)


def moved_bytes(*parts: ReadRows) -> list[tuple[int, int]]:
    """Every byte's source and target address, in order."""
    return [
        (int(source) + byte, int(target) + byte)
        for part in parts
        for source, target, nbytes in zip(part.source_address, part.target_address, part.nbytes, strict=True)
        for byte in range(int(nbytes))
    ]


@given(
    st.lists(st.integers(1, 40), max_size=30),
    st.integers(1, 25),
    st.integers(1, 5),
)
def test_posts_move_the_same_bytes_in_the_same_order_within_their_limits(
    sizes: list[int], most_bytes: int, most_rows: int
) -> None:
    rows = rows_of(*sizes)
    posts = list(split_into_posts(rows, most_bytes, most_rows))
    assert moved_bytes(*posts) == moved_bytes(rows)
    for post in posts:
        assert 1 <= len(post) <= most_rows
        assert post.total_bytes <= most_bytes
        assert (post.source_memory, post.source_device, post.target_memory, post.target_device) == (
            "VRAM",
            3,
            "DRAM",
            5,
        )


def test_posts_are_filled_as_far_as_they_go() -> None:
    assert [len(post) for post in split_into_posts(rows_of(*[4] * 10), 12, 100)] == [3, 3, 3, 1]
    assert [len(post) for post in split_into_posts(rows_of(*[4] * 10), 1000, 4)] == [4, 4, 2]


def test_rows_that_are_short_enough_are_not_copied() -> None:
    for rows, most_bytes in ((rows_of(1, 2, 3), 3), (rows_of(1, 2, 3), 1000), (rows_of(*[1] * 40), 17)):
        assert cut_for_posts(rows, most_bytes) is rows


def test_posts_of_long_rows_are_full() -> None:
    assert [post.nbytes.tolist() for post in split_into_posts(rows_of(5, 5, 30), 8, 100)] == [
        [5, 3], [2, 6], [8], [8], [8],
    ]  # fmt: skip


def test_a_part_shares_the_arrays_and_says_where_its_memory_is() -> None:
    rows = rows_of(1, 2, 3)
    part = rows.take(1, 3)
    assert np.shares_memory(part.nbytes, rows.nbytes) and part.nbytes.tolist() == [2, 3]
    assert (part.source_memory, part.source_device, part.target_device) == ("VRAM", 3, 5)


def test_total_bytes_is_their_sum() -> None:
    assert rows_of(1, 2, 3).total_bytes == 6
    assert rows_of().total_bytes == 0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([1, 2], [1], [1]), "source_address"),
        (([1], [1, 2], [1]), "target_address"),
        (([[1]], [[1]], [[1]]), "shape"),
        (([1, 1], [1, 1], [1, 0]), "nbytes of row 1 is 0"),
        (([2**64 - 4], [1], [5]), "source_address passes the end"),
        (([1], [2**64 - 4], [5]), "target_address passes the end"),
    ],
    ids=["fewer targets", "fewer sources", "two axes", "empty row", "source past 64 bits", "target past 64 bits"],
)
def test_rows_that_cannot_be_are_refused(arrays: tuple[list[int], ...], message: str) -> None:
    source, target, nbytes = (np.array(array, np.uint64) for array in arrays)
    with pytest.raises(LocalProtocolError, match=message):
        ReadRows(source, target, nbytes)


@pytest.mark.parametrize("name", ["source_address", "target_address", "nbytes"])
def test_signed_arrays_are_refused(name: str) -> None:
    arrays = {key: np.ones(2, np.uint64) for key in ("source_address", "target_address", "nbytes")}
    arrays[name] = np.ones(2, np.int64)
    with pytest.raises(LocalProtocolError, match=f"{name} is int64"):
        ReadRows(**arrays)


BASES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=4)


def repeated(bases: list[tuple[int, int]], sizes: list[int]) -> ReadRows:
    source, target = (np.array(side, np.uint64) * np.uint64(1000) for side in zip(*bases, strict=True))
    return ReadRows.repeated(source, target, rows_of(*sizes, source=7, target=9))


@given(BASES, st.lists(st.integers(1, 40), max_size=9), st.integers(0, 40), st.integers(0, 40))
def test_repeated_rows_are_the_pattern_from_every_pair_of_addresses(
    bases: list[tuple[int, int]], sizes: list[int], start: int, stop: int
) -> None:
    rows, pattern = repeated(bases, sizes), rows_of(*sizes, source=7, target=9)
    expected = [
        (1000 * source + int(s), 1000 * target + int(t), int(n))
        for source, target in bases
        for s, t, n in zip(pattern.source_address, pattern.target_address, pattern.nbytes, strict=True)
    ]
    for found, wanted in ((rows, expected), (rows.take(start, stop), expected[start:stop])):
        assert len(found) == len(wanted) and found.total_bytes == sum(n for *_, n in wanted)
        assert list(zip(found.source_address, found.target_address, found.nbytes, strict=True)) == wanted
        assert found.longest == max((n for *_, n in wanted), default=0)
        assert found.one_size == (wanted[0][2] if len({n for *_, n in wanted}) == 1 else None)
        assert found.triples("source").tolist() == [[s, n, 3] for s, _, n in wanted]
        assert found.triples("target").tolist() == [[t, n, 5] for _, t, n in wanted]
        assert (found.source_memory, found.target_memory) == ("VRAM", "DRAM")


@given(BASES, st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(1, 200), st.integers(1, 5))
def test_posts_of_repeated_rows_move_the_same_bytes(
    bases: list[tuple[int, int]], sizes: list[int], most_bytes: int, most_rows: int
) -> None:
    rows = repeated(bases, sizes)
    posts = list(split_into_posts(rows, most_bytes, most_rows))
    assert moved_bytes(*posts) == moved_bytes(rows)
    assert all(1 <= len(post) <= most_rows and post.total_bytes <= most_bytes for post in posts)


def test_a_part_of_repeated_rows_is_none_of_all() -> None:
    rows = repeated([(1, 2), (3, 4)], [8, 8])
    assert rows.repeats is not None and rows.take(0, 4).repeats is rows.repeats
    assert rows.take(0, 3).repeats is None and rows_of(1).repeats is None
    with pytest.raises(AttributeError):
        _ = rows.anything  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "target"),
    [([2**64 - 8], [0]), ([0], [2**64 - 8]), ([0, 1], [0])],
    ids=["source passes 64 bits", "target passes 64 bits", "unequal shapes"],
)
def test_repeated_rows_that_cannot_be_are_refused(source: list[int], target: list[int]) -> None:
    with pytest.raises(LocalProtocolError, match="read rows"):
        ReadRows.repeated(np.array(source, np.uint64), np.array(target, np.uint64), rows_of(9, source=0, target=0))


def test_a_pattern_up_to_the_end_of_the_address_space_is_not_repeated_beyond_it() -> None:
    """The sum of distance and size is 0 there."""
    end = np.array([0, 2**64 - 8], np.uint64)
    pattern = ReadRows(end, np.array([0, 8], np.uint64), np.full(2, 8, np.uint64))
    assert (
        ReadRows.repeated(*(np.zeros(1, np.uint64) for _ in range(2)), pattern).source_address.tolist() == end.tolist()
    )
    with pytest.raises(LocalProtocolError, match="64-bit"):
        ReadRows.repeated(*(np.full(1, 1000, np.uint64) for _ in range(2)), pattern)


def test_what_is_no_array_of_one_dimension_is_not_repeated() -> None:
    with pytest.raises(LocalProtocolError, match="one dimension"):
        ReadRows.repeated(*(np.array(5, np.uint64) for _ in range(2)), rows_of(9))


def test_repeated_rows_of_another_type_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="int64"):
        ReadRows.repeated(np.zeros(1, np.int64), np.zeros(1, np.uint64), rows_of(9))  # type: ignore[arg-type]
