"""The debugging mode: checksums of what was read, computed on both sides, piece by piece.

When all reads of a rank have ended and before anything is delivered, the decode rank asks the prefill engine for the
checksums of the same pieces there, while the lease still holds them, and compares them with what arrived::

    decode rank   reads ended | ChecksumRequest ->            | compare, then ReadsEnded (or ReadFailed: corrupted)
    prefill                                      <- Checksums |

A piece is at most ``PIECE_BYTES`` long and never longer than a row, so the first wrong one has a name: layer, part,
rank and token. Memory is read where this process can reach it: ranks in this process, DRAM.
"""

from __future__ import annotations

import ctypes
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvweave.core.layout import RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.errors import RemoteProtocolError
from kvweave.transport.rows import ReadRows

PIECE_BYTES = 4096
MOST_PIECES = 2048
"""Pieces of one request on the control channel: 8 MB of memory, some 40 kB of message."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces that came from one source rank: addresses there and here, and sizes, one each."""

    source: RankCoordinates
    source_addresses: tuple[int, ...]
    target_addresses: tuple[int, ...]
    sizes: tuple[int, ...]


def cut(source: RankCoordinates, rows: ReadRows) -> Iterator[Pieces]:
    """The rows of a read in pieces, ``MOST_PIECES`` at a time."""
    counts = -(-rows.nbytes.astype(np.int64) // PIECE_BYTES)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    step = (number * PIECE_BYTES).astype(np.uint64)
    there, here = (np.repeat(address, counts) + step for address in (rows.source_address, rows.target_address))
    sizes = np.minimum(np.repeat(rows.nbytes, counts) - step, np.uint64(PIECE_BYTES))
    for start in range(0, len(sizes), MOST_PIECES):
        chosen = slice(start, start + MOST_PIECES)
        yield Pieces(source, *(tuple(column[chosen].tolist()) for column in (there, here, sizes)))


def checksums(addresses: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """CRC-32 of each piece of this process's memory, which must be registered: nothing is checked here."""
    return tuple(zlib.crc32(ctypes.string_at(address, size)) for address, size in zip(addresses, sizes, strict=True))


def require_registered(rank: RankLayout, addresses: Sequence[int], sizes: Sequence[int]) -> None:
    """Raises ``RemoteProtocolError`` unless every piece lies in one of the rank's regions, in memory that is DRAM."""
    regions = sorted((r.address, r.address + r.nbytes) for r in rank.regions if r.memory == "DRAM")
    starts = np.array([start for start, _ in regions], np.uint64)
    ends = np.array([end for _, end in regions], np.uint64)
    if len(addresses) != len(sizes) or max(sizes, default=0) > PIECE_BYTES or not regions:
        raise RemoteProtocolError(f"checksums: {len(addresses)} addresses, {len(sizes)} sizes of up to {PIECE_BYTES}")
    address = np.array(addresses, np.uint64)
    slot = np.searchsorted(starts, address, side="right").astype(np.int64) - 1
    inside = (slot >= 0) & (np.array(sizes, np.uint64) <= ends[np.maximum(slot, 0)] - address)
    inside &= address < ends[np.maximum(slot, 0)]
    if not inside.all():
        wrong = addresses[int(np.argmin(inside))]
        raise RemoteProtocolError(f"checksums: {wrong:#x} is not in the DRAM of rank {rank.coordinates}")


def name_of(rank: RankLayout, address: int, tables: Mapping[str, Sequence[int]]) -> str:
    """What lies at an address of a rank: layer, part, block and token, by the request's block tables."""
    for shard in rank.shards:
        table = list(tables.get(shard.group, ()))
        for place in shard.places:
            block, within = divmod(
                address - rank.regions[place.region].address - place.offset, max(shard.geometry.block_stride, 1)
            )
            entry = _entry(shard, within) if block in table and block < shard.num_blocks else None
            if entry is not None:
                return f"{place.layer} {shard.array.part}, block {block}{_token(shard, table.index(block), entry)}"
    return f"address {address:#x}"


def _entry(shard: Shard, within: int) -> int | None:
    """Which entry of its block lies so many bytes in it, None for bytes of another array or of none.

    Strides are nested, so each one's number is a division.
    """
    geometry, entry = shard.geometry, 0
    for extent, stride in geometry.dimensions(shard.extents):
        number, within = divmod(within, stride)
        if number >= extent:
            return None
        if stride == geometry.entry_stride:
            entry += number
        elif stride == geometry.kernel_stride:
            entry += number * geometry.kernel_block_entries
    return entry if within < shard.array.dtype.nbytes else None


def _token(shard: Shard, position: int, entry: int) -> str:
    tokens = shard.array.tokens
    if tokens is None:
        return ""
    local = position * shard.geometry.block_entries + entry
    if shard.tokens is not None and shard.tokens.count > 1:
        turn, within = divmod(local, shard.tokens.interleave)
        local = (turn * shard.tokens.count + shard.tokens.index) * shard.tokens.interleave + within
    return f", token {local * tokens.tokens_per_entry}"


class ChecksumBook:
    """The pieces of one decode rank that wait for their source's checksums, by fetch."""

    def __init__(self, rank: RankLayout) -> None:
        self._rank = rank
        self._waiting: dict[int, deque[Pieces]] = {}
        self._tables: dict[int, Mapping[str, Sequence[int]]] = {}
        self._asked: list[tuple[int, Pieces]] = []
        self.compared = 0

    def begin(
        self, fetch: int, rows: Iterable[tuple[RankCoordinates, ReadRows]], tables: Mapping[str, Sequence[int]]
    ) -> None:
        """All reads of a fetch have ended; ``tables`` are those of its target."""
        self._waiting[fetch] = deque(pieces for source, read in rows for pieces in cut(source, read))
        self._tables[fetch] = tables
        self._ask(fetch)

    def busy(self, fetch: int) -> bool:
        """Whether checksums of this fetch are still awaited."""
        return fetch in self._waiting

    def take(self) -> list[tuple[int, Pieces]]:
        """What is to be asked now."""
        asked, self._asked = self._asked, []
        return asked

    def answer(self, fetch: int, sums: Sequence[int]) -> str | None:
        """Compares the oldest pieces that wait; names the first wrong one, and then waits for no more."""
        waiting = self._waiting.get(fetch)
        if waiting is None:
            return None
        pieces = waiting.popleft()
        own = checksums(pieces.target_addresses, pieces.sizes)
        self.compared += len(own)
        wrong = next((n for n, mine in enumerate(own) if n >= len(sums) or sums[n] != mine), None)
        if wrong is None:
            self._ask(fetch)
            return None
        where = name_of(self._rank, pieces.target_addresses[wrong], self._tables[fetch])
        self.drop(fetch)
        return (
            f"checksums: {where} of rank {self._rank.coordinates}: the {pieces.sizes[wrong]} bytes from rank "
            f"{pieces.source} differ from what is there"
        )

    def drop(self, fetch: int) -> None:
        """Waits for nothing of this fetch."""
        self._waiting.pop(fetch, None)
        self._tables.pop(fetch, None)
        self._asked = [asked for asked in self._asked if asked[0] != fetch]

    def _ask(self, fetch: int) -> None:
        if self._waiting[fetch]:
            self._asked.append((fetch, self._waiting[fetch][0]))
        else:
            self.drop(fetch)
