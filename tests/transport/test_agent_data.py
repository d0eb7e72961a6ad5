from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.layout import Region
from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES, AgentData
from kvweave.transport.regions import RegionTable

REGIONS = RegionTable().with_regions([Region(2**63, 4096), Region(4096, 64, "VRAM", 7)])
DATA = AgentData("prefill.tp3", REGIONS, 4711, 2**62, bytes(range(PROBE_BYTES)), b"payload|")


def test_what_was_encoded_is_decoded() -> None:
    decoded = AgentData.decode(DATA.encode())
    assert (decoded.name, decoded.probe_address, decoded.probe, decoded.payload) == (
        "prefill.tp3", 2**62, bytes(range(PROBE_BYTES)), b"payload|",
    )  # fmt: skip
    assert decoded.regions.records.tolist() == REGIONS.records.tolist()


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_rejected(noise: bytes) -> None:
    with pytest.raises(TransportError) as caught:
        AgentData.decode(noise)
    assert caught.value.kind is TransportErrorKind.REJECTED


@given(st.integers(0, len(DATA.encode()) - 1), st.integers(0, 255))
def test_one_wrong_byte_is_rejected_or_decoded_as_it_stands(place: int, value: int) -> None:
    damaged = bytearray(DATA.encode())
    damaged[place] = value
    with suppress(TransportError):
        assert AgentData.decode(bytes(damaged)).encode() == bytes(damaged)


@pytest.mark.parametrize("length", [0, 10, 40, 60, 80, 100])
def test_data_cut_short_is_rejected(length: int) -> None:
    with pytest.raises(TransportError) as caught:
        AgentData.decode(DATA.encode()[:length])
    assert caught.value.kind is TransportErrorKind.REJECTED


def test_a_count_that_would_overflow_is_rejected() -> None:
    damaged = bytearray(DATA.encode())
    damaged[24:32] = b"\xff" * 8
    with pytest.raises(TransportError, match="do not fit"):
        AgentData.decode(bytes(damaged))
