from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.interval import Interval
from kvweave.core.tokens import TokenShare, segments, shared_runs
from kvweave.errors import LayoutError

COUNTS, TURNS = st.integers(1, 6), st.integers(1, 5)
MANY = np.arange(300)


def shares(count: int, interleave: int) -> list[TokenShare]:
    return [TokenShare(count, index, interleave) for index in range(count)]


@given(COUNTS, TURNS)
def test_every_entry_is_in_exactly_one_share(count: int, interleave: int) -> None:
    assert (sum(share.holds(MANY).astype(int) for share in shares(count, interleave)) == 1).all()


@given(COUNTS, TURNS)
def test_local_positions_are_consecutive(count: int, interleave: int) -> None:
    for share in shares(count, interleave):
        mine = MANY[share.holds(MANY)]
        assert share.local(mine).tolist() == list(range(len(mine)))


@given(COUNTS, TURNS, st.integers(0, 300))
def test_the_number_of_local_positions_counts_the_held_entries(count: int, interleave: int, entries: int) -> None:
    held = [int(np.count_nonzero(share.holds(np.arange(entries)))) for share in shares(count, interleave)]
    assert [share.num_local(entries) for share in shares(count, interleave)] == held


@given(COUNTS, TURNS, st.sampled_from([4, 12, 60]))
def test_memory_is_contiguous_inside_a_stretch(count: int, interleave: int, block: int) -> None:
    for share in shares(count, interleave):
        stretch = share.stretch(block)
        mine = MANY[share.holds(MANY)]
        inside = mine[1:][mine[1:] % stretch != 0]
        assert share.holds(inside - 1).all() and (share.local(inside) - share.local(inside - 1) == 1).all()


@given(st.tuples(COUNTS, TURNS, COUNTS, TURNS), st.data())
def test_shared_runs_are_the_entries_in_both(sizes: tuple[int, int, int, int], data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(shares(*sizes[:2])))
    other = data.draw(st.sampled_from(shares(*sizes[2:])))
    runs, period = shared_runs(one, other)
    inside = np.zeros(len(MANY), dtype=bool)
    for run in runs:
        inside |= (MANY % period >= run.start) & (MANY % period < run.stop)
    assert (inside == (one.holds(MANY) & other.holds(MANY))).all()


@given(st.integers(0, 60), st.integers(0, 60), COUNTS, COUNTS)
def test_segments_cover_what_is_wanted_and_never_cross_a_step(start: int, length: int, one: int, other: int) -> None:
    first, lengths = segments(Interval(start, start + length), (one, other))
    covered = [e for at, n in zip(first, lengths, strict=True) for e in range(at, at + n)]
    assert covered == list(range(start, start + length))
    for step in (one, other):
        assert all(at // step == (at + n - 1) // step for at, n in zip(first, lengths, strict=True))
    assert (lengths > 0).all()


@pytest.mark.parametrize(("count", "index", "interleave"), [(0, 0, 1), (2, 2, 1), (2, -1, 1), (2, 0, 0)])
def test_a_share_that_cannot_be_is_refused(count: int, index: int, interleave: int) -> None:
    with pytest.raises(LayoutError, match=f"index {index} of count {count}, interleave {interleave}"):
        TokenShare(count, index, interleave)
