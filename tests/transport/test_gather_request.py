"""Requests say what they were made of; hostile ones raise our error and nothing else."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.layout import Region
from kvweave.errors import RemoteProtocolError
from kvweave.transport.gather_request import MOST_GIVEN_BACK, MOST_PIECES, RUN_RECORD, GatherRequest, runs_of
from kvweave.transport.regions import RegionTable

BASE = 1 << 30
REGIONS = RegionTable().with_regions([Region(BASE, 1 << 20), Region(BASE + (2 << 20), 4096)])
MOST_BYTES = 1 << 20


def request(*runs: tuple[int, int, int, int], ticket: int = 7, given_back: tuple[int, ...] = ()) -> GatherRequest:
    """Runs are (address, stride, nbytes, count)."""
    return GatherRequest(ticket, np.array(list(runs), RUN_RECORD), given_back)


def test_what_was_encoded_is_decoded() -> None:
    made = request((BASE, 512, 256, 16), (BASE + 9, 0, 64, 1), given_back=(3, 2**64 - 1))
    found = GatherRequest.decode(made.encode())
    assert (found.ticket, found.given_back) == (7, (3, 2**64 - 1))
    assert found.runs.tolist() == made.runs.tolist()


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 8, 8, 8])), min_size=1, max_size=60))
def test_runs_are_their_pieces_in_order(pieces: list[tuple[int, int]]) -> None:
    address = np.array([8 * place for place, _ in pieces], np.uint64) + np.uint64(BASE)
    nbytes = np.array([size for _, size in pieces], np.uint64)
    made = GatherRequest(1, runs_of(address, nbytes))
    with suppress(RemoteProtocolError):  # alternating sizes are refused
        found = made.pieces(REGIONS, MOST_BYTES)
        assert [part.tolist() for part in found] == [address.tolist(), nbytes.tolist()]


def test_a_head_split_takes_one_run_a_block() -> None:
    blocks = np.array([90, 3, 41, 42, 7], np.uint64) * np.uint64(16 * 2048)
    address = (blocks[:, None] + np.arange(16, dtype=np.uint64) * np.uint64(2048)).ravel()
    runs = runs_of(address, np.full(len(address), 256, np.uint64))
    assert len(runs) == 4  # two of the blocks are neighbours
    assert runs["count"].sum() == 80


def test_pieces_in_random_order_are_runs_of_one() -> None:
    address = np.array([5, 1, 9, 2], np.uint64) * np.uint64(64)
    assert runs_of(address, np.full(4, 64, np.uint64))["count"].tolist() == [1, 1, 1, 1]


def test_falling_addresses_are_a_run_too() -> None:
    address = np.array([3, 2, 1, 0], np.uint64) * np.uint64(64) + np.uint64(BASE)
    made = GatherRequest(1, runs_of(address, np.full(4, 64, np.uint64)))
    assert len(made.runs) == 1
    assert made.pieces(REGIONS, MOST_BYTES)[0].tolist() == address.tolist()


@pytest.mark.parametrize(
    "runs",
    [
        [], [(BASE, 0, 0, 1)], [(BASE, 0, 8, 0)], [(BASE, 0, 8, MOST_PIECES + 1)], [(BASE, 0, 8, 2**32 - 1)],
        [(BASE, 0, 2**32 - 1, 2**32 - 1)], [(BASE, 1 << 18, 1 << 18, 5)], [(BASE - 1, 0, 8, 1)],
        [(BASE, 1 << 20, 8, 2)], [(BASE + (1 << 20) - 7, 0, 8, 1)], [(BASE + (1 << 20), 0, 8, 1)],
        [(2**64 - 4, 0, 8, 1)], [(0, 0, 8, 1)], [(BASE, 2**63, 8, 3)],
        [(BASE, 0, 1 + i % 2, 1) for i in range(100)],
    ],
    ids=[
        "none", "empty pieces", "empty run", "too many pieces", "count overflows", "bytes overflow", "too many bytes",
        "before a region", "leaves its region", "over the end", "between regions", "past 64 bits", "nowhere",
        "stride wraps", "alternating sizes",
    ],
)  # fmt: skip
def test_pieces_that_may_not_be_gathered_are_refused(runs: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(RemoteProtocolError):
        request(*runs).pieces(REGIONS, MOST_BYTES)


def test_memory_of_a_device_is_not_gathered() -> None:
    device = RegionTable().with_regions([Region(BASE, 1 << 20, "VRAM", 0)])
    with pytest.raises(RemoteProtocolError):
        request((BASE, 0, 8, 1)).pieces(device, MOST_BYTES)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        GatherRequest.decode(noise)


@given(st.integers(0, 100), st.integers(0, 255))
def test_one_wrong_byte_is_refused_or_gathers_inside_the_regions(place: int, value: int) -> None:
    damaged = bytearray(request((BASE, 512, 256, 16), (BASE + 9, 0, 64, 1), given_back=(3, 4)).encode())
    damaged[place % len(damaged)] = value
    with suppress(RemoteProtocolError):
        address, nbytes = GatherRequest.decode(bytes(damaged)).pieces(REGIONS, MOST_BYTES)
        assert REGIONS.first_outside("DRAM", 0, address, nbytes) is None


@pytest.mark.parametrize("cut", [1, 23, 24, 40])
def test_a_message_cut_short_or_too_long_is_refused(cut: int) -> None:
    message = request((BASE, 0, 8, 1)).encode()
    for wrong in (message[:-cut], message + b"x" * cut):
        with pytest.raises(RemoteProtocolError):
            GatherRequest.decode(wrong)


def test_more_tickets_than_are_sent_at_once_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        GatherRequest.decode(request(given_back=tuple(range(MOST_GIVEN_BACK + 1))).encode())
