"""Agent data: what a peer needs to know of a transport before it can read from it.

::

    magic | name length, region count, process, probe address (u64 each) | probe |
    ring: address, slots, slot bytes (u64 each), file (i64) | name | region records | payload

The process is its number on its machine. The probe is a few bytes at the probe address that change with every
transport: a peer that reads them there knows that the connection works and that it reaches the right memory. The ring
is where the transport gathers pieces for its peers (``staging_ring``), without slots when it does not; its file is the
number by which that process has it open for others to map, or -1. The payload is the transport's own (NIXL's agent
metadata).
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

import numpy as np

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.regions import REGION_RECORD, RegionTable

PROBE_BYTES = 16
MOST_NAME_BYTES = 255
MOST_RING_SLOTS = 256
MOST_SLOT_BYTES = 64 << 20
_MAGIC = b"kvweave-agent/4\n"
_HEAD = struct.Struct(f"<{len(_MAGIC)}sQQQQ{PROBE_BYTES}sQQQq")
_NO_RING = (0, 0, 0, -1)


@dataclass(frozen=True, slots=True)
class RingPlace:
    """Where a transport's staging ring lies in its memory."""

    address: int
    num_slots: int
    slot_bytes: int
    file: int = -1


@dataclass(frozen=True, slots=True)
class AgentData:
    """One transport's agent data, decoded."""

    name: str
    regions: RegionTable
    process: int
    probe_address: int
    probe: bytes
    payload: bytes
    ring: RingPlace | None = None

    def encode(self) -> bytes:
        """The bytes to hand to a peer."""
        name = self.name.encode()
        ring = _NO_RING if self.ring is None else astuple(self.ring)
        head = _HEAD.pack(_MAGIC, len(name), len(self.regions), self.process, self.probe_address, self.probe, *ring)
        return head + name + self.regions.records.tobytes() + self.payload

    @staticmethod
    def decode(data: bytes) -> AgentData:
        """Agent data from a peer's bytes; raises ``TransportError`` (REJECTED) when they are malformed."""
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise _malformed(f"{len(data)} bytes starting with {data[:8]!r} are not of this version")
        _, name_bytes, regions, process, probe_address, probe, *ring = _HEAD.unpack_from(data)
        names_end = _HEAD.size + name_bytes
        regions_end = names_end + regions * REGION_RECORD.itemsize
        if not 0 < name_bytes <= MOST_NAME_BYTES or regions_end > len(data):
            raise _malformed(f"a name of {name_bytes} bytes and {regions} regions do not fit {len(data)} bytes")
        place = _checked_ring(RingPlace(*ring))
        records = np.frombuffer(data, REGION_RECORD, count=regions, offset=names_end)
        try:
            name = data[_HEAD.size : names_end].decode()
        except UnicodeDecodeError as error:
            raise _malformed(f"the name is not UTF-8: {error}") from error
        return AgentData(name, RegionTable(records), process, probe_address, probe, data[regions_end:], place)


def _checked_ring(place: RingPlace) -> RingPlace | None:
    if place == RingPlace(*_NO_RING):
        return None
    if not (
        0 < place.num_slots <= MOST_RING_SLOTS
        and 0 < place.slot_bytes <= MOST_SLOT_BYTES
        and place.address < 2**63
        and -1 <= place.file < 2**31
    ):
        raise _malformed(
            f"a ring of {place.num_slots} slots of {place.slot_bytes} bytes at {place.address:#x}, file {place.file}; "
            f"at most {MOST_RING_SLOTS} of {MOST_SLOT_BYTES} bytes can be"
        )
    return place


def _malformed(message: str) -> TransportError:
    return TransportError(TransportErrorKind.REJECTED, f"agent data: {message}")
