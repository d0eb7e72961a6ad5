"""What is asked for is gathered slot by slot, and nothing that is not registered is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.test_gather_request import request

from kvweave.core.layout import Region
from kvweave.errors import RemoteProtocolError
from kvweave.transport.gather_request import MOST_PIECES, GatherRequest
from kvweave.transport.gathering import Gathering
from kvweave.transport.regions import RegionTable
from kvweave.transport.slots import Slots

BASE = 1 << 30
REGIONS = RegionTable().with_regions([Region(BASE, 1 << 20), Region(BASE + (2 << 20), 4096)])
MOST_BYTES = 1 << 20


def gathered(asked: GatherRequest, regions: RegionTable = REGIONS) -> list[int]:
    """How many pieces each slot has."""
    gathering = Gathering(GatherRequest.decode(asked.encode()), regions, MOST_BYTES)
    return [gathering.pieces(number).count for number in range(gathering.slots.count)]


REFUSED = {
    "none": request(),
    "empty pieces": request((BASE, 0, 1), nbytes=0),
    "bytes overflow": request((BASE, 0, MOST_PIECES), nbytes=2**32 - 1),
    "slots of too many bytes": request((BASE, 1 << 17, 4), nbytes=1 << 19, slots=Slots(4, 1, 3)),
    "too many bytes": request((BASE, 1 << 18, 5), nbytes=1 << 18),
    "before a region": request((BASE - 1, 0, 1)),
    "leaves its region": request((BASE, 1 << 20, 2)),
    "over the end": request((BASE + (1 << 20) - 7, 0, 1)),
    "between regions": request((BASE + (1 << 20), 0, 1)),
    "past 64 bits": request((2**64 - 4, 0, 1)),
    "a run past 64 bits": request((2**64 - 2**31, 2**31, 2)),
    "a distance past 64 bits": request((2**63, 0, 1), repeats=(2**63 - 4,)),
    "repeated where nothing is": request((64, 0, 1), repeats=(BASE, 0)),
    "nowhere": request((0, 0, 1)),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_pieces_that_may_not_be_gathered_are_refused(refused: GatherRequest) -> None:
    with pytest.raises(RemoteProtocolError):
        gathered(refused)


@pytest.mark.parametrize(("pieces", "slots"), [(2, [2]), (5, [5]), (6, [5, 1]), (15, [5, 5, 5])])
def test_every_slot_but_the_last_is_full(pieces: int, slots: list[int]) -> None:
    assert gathered(request((BASE, 512, pieces), slots=Slots(pieces, 5, 5))) == slots


def test_a_pattern_is_gathered_from_where_it_is_repeated() -> None:
    repeats = (BASE, BASE + 512, BASE + (2 << 20))
    assert gathered(request((64, 8, 3), repeats=repeats, slots=Slots(9, 1, 4))) == [1, 4, 4]


def test_a_run_over_two_regions_is_gathered_when_each_piece_lies_in_one() -> None:
    """The regions begin 2 MB apart."""
    assert gathered(request((BASE, 2 << 20, 2))) == [2]


def test_slots_before_the_first_bad_piece_are_gathered() -> None:
    gathering = Gathering(request((BASE, 1 << 19, 3), slots=Slots(3, 1, 1)), REGIONS, MOST_BYTES)
    assert [gathering.pieces(number).count for number in (0, 1)] == [1, 1]
    with pytest.raises(RemoteProtocolError, match="not inside one registered region"):
        gathering.pieces(2)


def test_a_pattern_that_passes_64_bits_where_it_is_repeated_reads_registered_memory_at_most() -> None:
    """Its sum comes round to registered memory, which its reader may have anyway."""
    assert gathered(request((BASE + 2**63, 8, 2), repeats=(2**63,))) == [2]


def test_pieces_that_overlap_may_be_gathered() -> None:
    """They are only read; the same bytes twice are the reader's affair."""
    assert gathered(request((BASE, 1, 100))) == [100]


def test_memory_of_a_device_is_not_gathered() -> None:
    with pytest.raises(RemoteProtocolError):
        gathered(request((BASE, 0, 1)), RegionTable().with_regions([Region(BASE, 1 << 20, "VRAM", 0)]))


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=9),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(0, 44),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from([8, 12]),
    st.booleans(),
)
def test_the_bytes_are_those_of_the_pieces_that_are_named(
    places: list[int], layers: list[int], start: int, first: int, each: int, step: int, surely: bool
) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 16_384, np.uint8)
    base = memory.ctypes.data
    middle = 8192 if surely else 4
    regions = RegionTable().with_regions([Region(base, middle), Region(base + middle, 16_384 - middle)])
    runs = [(place * step, 0, 1) for place in places]
    named = [layer * 600 + place * step for layer in layers for place in places]
    start = min(start, len(named) - 1)
    repeats = tuple(base + layer * 600 for layer in layers)
    asked = request(*runs, repeats=repeats, nbytes=4, start=start, slots=Slots(len(named) - start, first, each))
    gathering = Gathering(GatherRequest.decode(asked.encode()), regions, 4096)
    found = []
    for number in range(gathering.slots.count):
        pieces = gathering.pieces(number)
        pieces.gather(buffer := np.zeros(pieces.nbytes, np.uint8))
        found.append(buffer)
    expected = np.concatenate([memory[place : place + 4] for place in named[start:]])
    np.testing.assert_array_equal(np.concatenate(found), expected)
