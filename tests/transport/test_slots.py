"""Slots hold all pieces, each once and in their order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvweave.transport.slots import Slots

COUNTS = st.integers(1, 30)


@given(COUNTS, COUNTS, COUNTS)
def test_every_piece_is_in_one_slot_and_all_but_the_last_are_full(pieces: int, first: int, each: int) -> None:
    slots = Slots(pieces, first, each)
    bounds = [slots.bounds(number) for number in range(slots.count)]
    assert bounds[0][0] == 0 and bounds[-1][1] == pieces
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert all(sizes) and max(sizes) == slots.most
    assert [first, *[each] * (len(sizes) - 1)][: len(sizes) - 1] == sizes[:-1]
    assert sizes[-1] <= (each if len(sizes) > 1 else first)
