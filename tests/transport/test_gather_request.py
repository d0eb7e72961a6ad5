"""Requests say what they were made of; hostile ones raise our error and nothing else."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.layout import Region
from kvweave.errors import RemoteProtocolError
from kvweave.transport.gather_request import (
    MOST_GIVEN_BACK,
    MOST_PIECES,
    MOST_RUNS,
    MOST_SLOTS,
    GatherRequest,
)  # fmt: skip
from kvweave.transport.regions import RegionTable
from kvweave.transport.runs import Runs, runs_of

BASE = 1 << 30
REGIONS = RegionTable().with_regions([Region(BASE, 1 << 20), Region(BASE + (2 << 20), 4096)])
MOST_BYTES = 1 << 20


def request(
    *runs: tuple[int, int, int],
    nbytes: int = 8,
    ticket: int = 7,
    given_back: tuple[int, ...] = (),
    slot_pieces: int = MOST_PIECES,
) -> GatherRequest:
    """Runs are (address, stride, count)."""
    columns = list(zip(*runs, strict=True)) or [(), (), ()]
    address, stride, count = (np.array(column, kind) for column, kind in zip(columns, ("u8", "u4", "u4"), strict=True))
    return GatherRequest(ticket, nbytes, Runs(address, stride, count), given_back, slot_pieces)


def test_what_was_encoded_is_decoded() -> None:
    made = request((BASE, 512, 16), (BASE + 9, 0, 1), nbytes=256, given_back=(3, 2**64 - 1), slot_pieces=5)
    found = GatherRequest.decode(made.encode())
    assert (found.ticket, found.piece_bytes, found.given_back, found.slot_pieces) == (7, 256, (3, 2**64 - 1), 5)
    assert found.runs.addresses().tolist() == made.runs.addresses().tolist()


def test_single_pieces_are_just_their_addresses() -> None:
    runs = runs_of(np.array([5, 1, 9, 2], np.uint64) * np.uint64(64) + np.uint64(BASE))
    made = GatherRequest(7, 64, runs)
    assert (len(runs.stride), len(runs.count), runs.pieces) == (0, 0, 4)
    assert GatherRequest.decode(made.encode()).runs.addresses().tolist() == runs.addresses().tolist()


@pytest.mark.parametrize(("pieces", "slots"), [(2, [2]), (5, [5]), (6, [5, 1]), (15, [5, 5, 5])])
def test_every_slot_but_the_last_is_full_and_has_a_ticket_of_its_own(pieces: int, slots: list[int]) -> None:
    made = GatherRequest.decode(request((BASE, 512, pieces), slot_pieces=5).encode())
    assert [found.count for found in made.slots(REGIONS, MOST_BYTES)] == slots
    assert list(made.tickets) == [7 + number for number in range(len(slots))]


def test_a_request_for_nothing_has_no_tickets() -> None:
    assert not request(ticket=0).tickets and not request((BASE, 0, 1), ticket=0).tickets


REFUSED = {
    "none": request(),
    "empty pieces": request((BASE, 0, 1), nbytes=0),
    "bytes overflow": request((BASE, 0, MOST_PIECES), nbytes=2**32 - 1),
    "slots of too many bytes": request((BASE, 1 << 17, 4), nbytes=1 << 19, slot_pieces=3),
    "too many bytes": request((BASE, 1 << 18, 5), nbytes=1 << 18),
    "before a region": request((BASE - 1, 0, 1)),
    "leaves its region": request((BASE, 1 << 20, 2)),
    "over the end": request((BASE + (1 << 20) - 7, 0, 1)),
    "between regions": request((BASE + (1 << 20), 0, 1)),
    "past 64 bits": request((2**64 - 4, 0, 1)),
    "a run past 64 bits": request((2**64 - 2**31, 2**31, 2)),
    "nowhere": request((0, 0, 1)),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_pieces_that_may_not_be_gathered_are_refused(refused: GatherRequest) -> None:
    with pytest.raises(RemoteProtocolError):
        GatherRequest.decode(refused.encode()).slots(REGIONS, MOST_BYTES)


ABSURD = {
    "an empty run": request((BASE, 8, 3), (BASE, 0, 0)),
    "too many pieces": request((BASE, 0, MOST_SLOTS * MOST_PIECES + 1)),
    "too many slots": request((BASE, 0, MOST_SLOTS + 1), slot_pieces=1),
    "too many pieces of a slot": request((BASE, 0, 1), slot_pieces=MOST_PIECES + 1),
    "no pieces of a slot": request((BASE, 0, 1), slot_pieces=0),
    "tickets that pass 64 bits": request((BASE, 0, 1), ticket=2**64 - 1),
    "counts beyond 32 bits": request((BASE, 0, 2**32 - 1), (BASE, 0, 2**32 - 1)),
    "too many runs": request(*[(BASE, 0, 1)] * (MOST_RUNS + 1)),
    "too many tickets": request((BASE, 0, 1), given_back=tuple(range(MOST_GIVEN_BACK + 1))),
}


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD)
def test_absurd_counts_are_refused_before_anything_is_made_of_them(absurd: GatherRequest) -> None:
    head = struct.pack(
        "<4sIIIIIQ",
        b"kvg3",
        len(absurd.given_back),
        len(absurd.runs.address),
        absurd.runs.pieces % 2**32,
        8,
        absurd.slot_pieces,
        absurd.ticket,
    )
    with pytest.raises(RemoteProtocolError):
        GatherRequest.decode(head + absurd.encode()[len(head) :] if absurd.runs.pieces < 2**32 else head)


def test_a_head_that_counts_otherwise_than_its_runs_is_refused() -> None:
    message = bytearray(request((BASE, 8, 3), (BASE, 0, 1)).encode())
    message[12:16] = (5).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match="4 pieces, its head says 5"):
        GatherRequest.decode(bytes(message))


def test_a_run_over_two_regions_is_gathered_when_each_piece_lies_in_one() -> None:
    """The regions begin 2 MB apart."""
    [made] = request((BASE, 2 << 20, 2)).slots(REGIONS, MOST_BYTES)
    assert (made.count, made.size) == (2, 8)


def test_pieces_that_overlap_may_be_gathered() -> None:
    """They are only read; the same bytes twice are the reader's affair."""
    assert request((BASE, 1, 100)).slots(REGIONS, MOST_BYTES)[0].nbytes == 800


def test_memory_of_a_device_is_not_gathered() -> None:
    device = RegionTable().with_regions([Region(BASE, 1 << 20, "VRAM", 0)])
    with pytest.raises(RemoteProtocolError):
        request((BASE, 0, 1)).slots(device, MOST_BYTES)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        GatherRequest.decode(noise)


@given(st.integers(0, 100), st.integers(0, 255))
def test_one_wrong_byte_is_refused_or_gathers_inside_the_regions(place: int, value: int) -> None:
    damaged = bytearray(request((BASE, 512, 16), (BASE + 9, 0, 1), nbytes=256, given_back=(3, 4)).encode())
    damaged[place % len(damaged)] = value
    with suppress(RemoteProtocolError):
        found = GatherRequest.decode(bytes(damaged))
        assert all(pieces.nbytes <= MOST_BYTES for pieces in found.slots(REGIONS, MOST_BYTES))
        address = found.runs.addresses()
        assert REGIONS.first_outside("DRAM", 0, address, np.full(len(address), found.piece_bytes, np.uint64)) is None


@pytest.mark.parametrize("cut", [1, 23, 24, 40])
def test_a_message_cut_short_or_too_long_is_refused(cut: int) -> None:
    message = request((BASE, 0, 1)).encode()
    for wrong in (message[:-cut], message + b"x" * cut):
        with pytest.raises(RemoteProtocolError):
            GatherRequest.decode(wrong)
