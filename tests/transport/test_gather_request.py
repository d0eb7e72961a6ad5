"""Requests say what they were made of; hostile ones raise our error and nothing else."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.errors import RemoteProtocolError
from kvweave.transport.gather_request import (
    MOST_GIVEN_BACK,
    MOST_PATTERN_PIECES,
    MOST_PIECES,
    MOST_REPEATS,
    MOST_RUNS,
    GatherRequest,
)  # fmt: skip
from kvweave.transport.runs import Runs, runs_of
from kvweave.transport.slots import Slots

BASE = 1 << 30


def request(
    *runs: tuple[int, int, int],
    nbytes: int = 8,
    ticket: int = 7,
    given_back: tuple[int, ...] = (),
    repeats: tuple[int, ...] = (0,),
    start: int = 0,
    slots: Slots | None = None,
) -> GatherRequest:
    """Runs are (address, stride, count); all their pieces in one slot, unless said otherwise."""
    columns = list(zip(*runs, strict=True)) or [(), (), ()]
    address, stride, count = (np.array(column, kind) for column, kind in zip(columns, ("u8", "u4", "u4"), strict=True))
    found = Runs(address, stride, count) if (count != 1).any() else Runs.single(address)
    pieces = found.pieces * len(repeats) - start
    slots = slots or Slots(pieces, min(max(1, pieces), MOST_PIECES), MOST_PIECES)
    return GatherRequest(ticket, nbytes, np.array(repeats, np.uint64), found, start, slots, given_back)


def test_what_was_encoded_is_decoded() -> None:
    made = request(
        (BASE, 512, 16), (BASE + 9, 0, 1), nbytes=256, given_back=(3, 2**64 - 1), repeats=(5, 0, 2**63), start=4,
        slots=Slots(30, 2, 9),
    )  # fmt: skip
    found = GatherRequest.decode(made.encode())
    assert (found.ticket, found.piece_bytes, found.given_back, found.start) == (7, 256, (3, 2**64 - 1), 4)
    assert found.slots == made.slots and found.repeats.tolist() == [5, 0, 2**63]
    assert found.runs.addresses().tolist() == made.runs.addresses().tolist()


def test_single_pieces_are_just_their_addresses() -> None:
    runs = runs_of(np.array([5, 1, 9, 2], np.uint64) * np.uint64(64) + np.uint64(BASE))
    made = GatherRequest(7, 64, np.zeros(1, np.uint64), runs, 0, Slots(4, 4, 4))
    assert (len(runs.stride), len(runs.count), runs.pieces) == (0, 0, 4)
    assert GatherRequest.decode(made.encode()).runs.addresses().tolist() == runs.addresses().tolist()


@pytest.mark.parametrize(("pieces", "slots"), [(2, 1), (5, 1), (6, 2), (15, 3)])
def test_every_slot_has_a_ticket_of_its_own(pieces: int, slots: int) -> None:
    made = GatherRequest.decode(request((BASE, 512, pieces), slots=Slots(pieces, 5, 5)).encode())
    assert list(made.tickets) == [7 + number for number in range(slots)]


def test_a_request_for_nothing_has_no_tickets() -> None:
    assert not request((BASE, 0, 1), ticket=0).tickets
    made = GatherRequest.decode(GatherRequest.for_nothing((3, 4)).encode())
    assert not made.tickets and made.given_back == (3, 4)


ABSURD = {
    "an empty run": request((BASE, 8, 3), (BASE, 0, 0)),
    "more pieces than there are": request((BASE, 0, 3), slots=Slots(4, 4, 4)),
    "more pieces behind the first": request((BASE, 0, 3), start=1, slots=Slots(3, 3, 3)),
    "more pieces than all repeats have": request((BASE, 0, 3), repeats=(0, 64), slots=Slots(7, 4, 4)),
    "more pieces than can be counted": request((BASE, 0, 3), slots=Slots(2**64 - 1, 1, 1)),
    "a first piece that cannot be counted": request((BASE, 0, 3), start=2**64 - 1, slots=Slots(1, 1, 1)),
    "pieces of no repeat": request((BASE, 0, 3), repeats=(), slots=Slots(1, 1, 1)),
    "too many pieces of the first slot": request((BASE, 0, 1), slots=Slots(1, MOST_PIECES + 1, 1)),
    "too many pieces of other slots": request((BASE, 0, 1), slots=Slots(1, 1, MOST_PIECES + 1)),
    "no pieces of the first slot": request((BASE, 0, 1), slots=Slots(1, 0, 1)),
    "no pieces of other slots": request((BASE, 0, 1), slots=Slots(1, 1, 0)),
    "tickets that pass 64 bits": request((BASE, 0, 2), ticket=2**64 - 1, slots=Slots(2, 1, 1)),
    "counts beyond 32 bits": request((BASE, 0, 2**32 - 1), (BASE, 0, 2**32 - 1)),
    "too many pieces of all runs": request((BASE, 0, MOST_PATTERN_PIECES + 1), slots=Slots(1, 1, 1)),
    "too many runs": request(*[(BASE, 0, 1)] * (MOST_RUNS + 1), slots=Slots(1, 1, 1)),
    "too many repeats": request((BASE, 0, 1), repeats=(0,) * (MOST_REPEATS + 1), slots=Slots(1, 1, 1)),
    "too many tickets": request((BASE, 0, 1), given_back=tuple(range(MOST_GIVEN_BACK + 1))),
}


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD)
def test_absurd_counts_are_refused_before_anything_is_made_of_them(absurd: GatherRequest) -> None:
    slots = absurd.slots
    head = struct.pack(
        "<4sIIIIIIIQQQ",
        b"kvg4",
        len(absurd.given_back),
        len(absurd.repeats),
        len(absurd.runs.address),
        absurd.runs.pieces % 2**32,
        8,
        slots.first,
        slots.each,
        absurd.ticket,
        absurd.start,
        slots.pieces,
    )
    with pytest.raises(RemoteProtocolError):
        GatherRequest.decode(head + absurd.encode()[len(head) :] if absurd.runs.pieces < 2**32 else head)


def test_a_head_that_counts_otherwise_than_its_runs_is_refused() -> None:
    message = bytearray(request((BASE, 8, 3), (BASE, 0, 1)).encode())
    message[16:20] = (5).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match="4 pieces, its head says 5"):
        GatherRequest.decode(bytes(message))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        GatherRequest.decode(noise)


@given(st.integers(0, 200), st.integers(0, 255))
def test_one_wrong_byte_is_refused_or_asks_for_pieces_that_it_names(place: int, value: int) -> None:
    damaged = bytearray(request((BASE, 512, 16), (BASE + 9, 0, 1), repeats=(0, 64), given_back=(3, 4)).encode())
    damaged[place % len(damaged)] = value
    with suppress(RemoteProtocolError):
        found = GatherRequest.decode(bytes(damaged))
        assert found.start + found.slots.pieces <= len(found.repeats) * len(found.runs.addresses())


@pytest.mark.parametrize("cut", [1, 23, 24, 40])
def test_a_message_cut_short_or_too_long_is_refused(cut: int) -> None:
    message = request((BASE, 0, 1)).encode()
    for wrong in (message[:-cut], message + b"x" * cut):
        with pytest.raises(RemoteProtocolError):
            GatherRequest.decode(wrong)
