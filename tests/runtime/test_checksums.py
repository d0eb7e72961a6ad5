"""Checksums: what arrived is compared with what is there, and the first wrong piece has a name."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import replace

import numpy as np
import pytest

import kvweave as kw
from kvweave.errors import ConfigurationError, KVWeaveError, RemoteProtocolError, TransportErrorKind
from kvweave.runtime import DecodeEngine
from kvweave.runtime.checksums import MOST_PIECES, PIECE_BYTES, checksums, cut, name_of, require_registered
from kvweave.transport.base import ReadHandle, Transport
from kvweave.transport.faults import Fault, scripted_faults
from kvweave.transport.memory import MemoryNetwork
from kvweave.transport.rows import ReadRows
from tests.runtime.memory import ATTENTION, LATENT, EngineMemory
from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, joined
from tests.runtime.ways import over_nixl, transport_of


@pytest.mark.parametrize("transport", ["memory", *over_nixl()])
def test_right_bytes_are_delivered_and_all_of_them_compared(transport: str) -> None:
    with joined(checksums=True, transport=transport_of(transport)) as pair:
        pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert pair.wrong_bytes() == 0
        asked = pair.decode.metrics().total("checked_pieces")
        assert asked == pair.prefill.metrics().total("checked_pieces") > 0


BROKEN = Fault(copied=0.5, error=TransportErrorKind.UNAVAILABLE)


class Flipping:
    """A transport that spoils the last byte of every read, after it was seen complete."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._reads: list[tuple[ReadHandle, ReadRows]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def read(self, peer: str, rows: ReadRows, attended: bool = True) -> ReadHandle:
        self._reads.append((self._inner.read(peer, rows, attended), rows))
        return self._reads[-1][0]

    def progress(self) -> int:
        remaining = self._inner.progress()
        for handle, rows in self._reads:
            if handle.state.terminal:
                ctypes.c_ubyte.from_address(int(rows.target_address[-1] + rows.nbytes[-1]) - 1).value ^= 0xFF
        self._reads = [held for held in self._reads if not held[0].state.terminal]
        return remaining


@pytest.mark.parametrize("transport", ["memory", *over_nixl()])
def test_first_wrong_piece_is_named(transport: str) -> None:
    make = transport_of(transport) or MemoryNetwork().join
    flipping = lambda name: Flipping(make(name)) if name.startswith("decode") else make(name)  # noqa: E731
    with joined(checksums=True, transport=flipping) as pair:
        wrong = (
            r"model\.layers\.\d\.self_attn [kv], block \d+, token \d+ of rank tp\d: the \d+ bytes from rank tp\d differ"
        )
        with pytest.raises(RemoteProtocolError, match=wrong):
            pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        assert pair.decode.metrics().by_label("failed") == {"corrupted": 1}


@pytest.mark.parametrize("spoiled", [False, True], ids=["right", "wrong"])
def test_what_was_read_from_another_replica_is_compared_too(spoiled: bool) -> None:
    network = MemoryNetwork()

    def make(name: str) -> object:
        if name.startswith("prefill"):
            return network.join(name)
        faulty = network.join(name, scripted_faults([BROKEN]))
        return Flipping(faulty) if spoiled else faulty

    with joined(model=LATENT, checksums=True, transport=make) as pair:
        fetch = pair.decode.fetch(pair.offer(), TARGET_BLOCKS)
        if spoiled:
            with pytest.raises(RemoteProtocolError, match="differ from what is there"):
                fetch.result(PATIENCE)
        else:
            fetch.result(PATIENCE)
            assert pair.wrong_bytes() == 0
            assert pair.prefill.metrics().total("checked_pieces") > 0
            assert pair.decode.metrics().total("retried_reads") == 2


def test_engine_without_checksums_refuses_with_the_remedy() -> None:
    with joined(checksums=True) as pair:
        pair.prefill._coordinator._summed = ()
        with pytest.raises(KVWeaveError, match="start it with checksums"):
            pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)


def test_ranks_in_other_processes_are_refused() -> None:
    layout = EngineMemory(kw.EngineLayout.build(ATTENTION, kw.ParallelConfig())).layout
    with joined() as pair:
        remote = pair.decode._coordinator._workers[0]
        with pytest.raises(ConfigurationError, match="other processes"):
            DecodeEngine(layout, workers=[remote], checksums=True)


def test_pieces_cover_the_rows_and_are_asked_for_in_parts() -> None:
    nbytes = np.array([1, PIECE_BYTES, PIECE_BYTES * MOST_PIECES + 5], np.uint64)
    rows = ReadRows(np.array([0, 10**6, 2 * 10**6], np.uint64), np.array([7, 10**7, 2 * 10**7], np.uint64), nbytes)
    parts = list(cut(kw.EngineLayout.build(ATTENTION, kw.ParallelConfig()).ranks[0].coordinates, rows))
    assert [len(part.sizes) for part in parts] == [MOST_PIECES, 3]
    assert sum(sum(part.sizes) for part in parts) == int(nbytes.sum())
    assert parts[1].source_addresses[-1] == 2 * 10**6 + PIECE_BYTES * MOST_PIECES
    assert parts[1].target_addresses[-1] - 2 * 10**7 == PIECE_BYTES * MOST_PIECES


def test_checksums_are_those_of_memory() -> None:
    memory = np.arange(100, dtype=np.uint8)
    assert checksums([memory.ctypes.data + 3], [10]) == (zlib.crc32(memory[3:13].tobytes()),)


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (0, PIECE_BYTES + 1), (10**9, 1), (2**63, 8)], ids=["before", "long", "behind", "far"]
)
def test_foreign_memory_is_never_summed(offset: int, size: int) -> None:
    rank = EngineMemory(kw.EngineLayout.build(LATENT, kw.ParallelConfig())).layout.ranks[0]
    with pytest.raises(RemoteProtocolError, match="checksums"):
        require_registered(rank, [rank.regions[0].address + offset], [size])
    with pytest.raises(RemoteProtocolError, match="checksums"):
        require_registered(rank, [rank.regions[0].address], [])
    with pytest.raises(RemoteProtocolError, match="checksums"):
        require_registered(replace(rank, regions=(), shards=()), [5], [1])


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("token", [0, 7, 8, 21])
def test_every_token_has_its_name(layout: str, token: int) -> None:
    cache = kw.CacheConfig(block_size=8, num_blocks=16, layout=layout)
    rank = kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(), cache).ranks[0]
    tables = {"full": (9, 3, 12)}
    shard = next(shard for shard in rank.shards if shard.array.part == "v")
    place, geometry = shard.places[1], shard.geometry
    address = rank.regions[place.region].address + place.offset + tables["full"][token // 8] * geometry.block_stride
    address += token % 8 * geometry.entry_stride + geometry.axis_strides[0] + 3
    block = tables["full"][token // 8]
    assert name_of(rank, address, tables) == f"{place.layer} v, block {block}, token {token}"
    assert name_of(rank, 5, tables) == "address 0x5"
