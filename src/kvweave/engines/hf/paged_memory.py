"""An engine's paged, sharded cache memory on this machine, for all of its ranks.

Every rank has buffers of its own, as large as its layout's regions. Arrays of a request go in and out by numpy views
that follow the layout's strides, so what lies in memory is what the layout says, whatever the memory order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvweave.core.array import DType
from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout, Place, RankLayout, Shard
from kvweave.core.portion import Portion, keeps_all_tokens
from kvweave.engines.hf.captured import ArrayKey, CapturedArray, CapturedCache
from kvweave.errors import LocalProtocolError

Tables = Mapping[str, Sequence[int]]
"""A request's logical block ids by group name."""

_ALIGNMENT = 4096


class PagedMemory:
    """Buffers for every region of ``layout``, and the same layout at their real addresses (``layout``)."""

    def __init__(self, layout: EngineLayout) -> None:
        self._buffers: dict[tuple[int, int], NDArray[np.uint8]] = {}
        ranks = []
        for number, rank in enumerate(layout.ranks):
            buffers = [_aligned(region.nbytes) for region in rank.regions]
            self._buffers |= {(number, region): buffer for region, buffer in enumerate(buffers)}
            regions = (replace(r, address=b.ctypes.data) for r, b in zip(rank.regions, buffers, strict=True))
            ranks.append(replace(rank, regions=tuple(regions)))
        self.layout = replace(layout, ranks=tuple(ranks))

    def write(self, captured: CapturedCache, tables: Tables, portion: Portion | None = None) -> None:
        """Stores a request's arrays in its blocks, on every rank that holds a part of them; or a portion of these."""
        for number, rank in enumerate(self.layout.ranks):
            for shard, place in _held(rank):
                if portion is not None and not portion.moves(shard.array):
                    continue
                array = captured.array(place.layer, shard.array.part)
                view = self._view(number, shard, place)
                inside = tuple(slice(interval.start, interval.stop) for interval in shard.box)
                if shard.tokens is None:
                    view[_running_block(shard, tables), 0, 0] = array.data[inside]
                else:
                    first = max(array.first_entry, _first_kept(shard, portion))
                    entries = np.arange(first, array.first_entry + len(array.data))
                    entries, at = _locations(shard, tables, entries)
                    view[at] = array.data[entries - array.first_entry][:, *inside]

    def scribble(self, tables: Tables) -> None:
        """Overwrites a request's blocks, as their next owner would."""
        for number, rank in enumerate(self.layout.ranks):
            for shard, place in _held(rank):
                view = self._view(number, shard, place)
                blocks = [block for block in tables[shard.group] if block != NULL_BLOCK]
                view[blocks] = np.frombuffer(b"\xa5" * view.dtype.itemsize, dtype=view.dtype)[0]

    def read(self, num_tokens: int, tables: Tables) -> CapturedCache:
        """A request's arrays out of its blocks; raises ``LocalProtocolError`` if two ranks' replicas differ.

        Of windowed arrays the entries that the next token looks at.
        """
        arrays: dict[ArrayKey, CapturedArray] = {}
        filled: dict[ArrayKey, NDArray[np.bool_]] = {}
        for number, rank in enumerate(self.layout.ranks):
            for shard, place in _held(rank):
                key = (place.layer, shard.array.part)
                if key not in arrays:
                    arrays[key] = _empty(shard, num_tokens)
                    filled[key] = np.zeros(arrays[key].data.shape, dtype=np.bool_)
                held, values = self._held_values(number, shard, place, arrays[key], tables)
                _join(key, arrays[key].data, filled[key], held, values)
        for key, complete in filled.items():
            if not complete.all():
                raise LocalProtocolError(f"{key[0]} {key[1]}: no rank holds all of it; describe every rank")
        return CapturedCache(num_tokens, arrays)

    def _held_values(
        self, number: int, shard: Shard, place: Place, array: CapturedArray, tables: Tables
    ) -> tuple[Any, NDArray[Any]]:
        """Where in the whole array a shard's values belong, and the values."""
        view = self._view(number, shard, place)
        inside = tuple(slice(interval.start, interval.stop) for interval in shard.box)
        if shard.tokens is None:
            return inside, view[_running_block(shard, tables), 0, 0]
        entries = np.arange(array.first_entry, array.first_entry + len(array.data))
        entries, at = _locations(shard, tables, entries)
        return (entries - array.first_entry, *inside), view[at]

    def _view(self, number: int, shard: Shard, place: Place) -> NDArray[Any]:
        """(block, kernel block, entry, *box), laid over the rank's buffer by strides."""
        geometry = shard.geometry
        kernels = geometry.block_entries // geometry.kernel_block_entries
        return np.ndarray(
            (shard.num_blocks, kernels, geometry.kernel_block_entries, *shard.extents),
            dtype=numpy_dtype(shard.array.dtype),
            buffer=self._buffers[number, place.region].data,
            offset=place.offset,
            strides=(geometry.block_stride, geometry.kernel_stride, geometry.entry_stride, *geometry.axis_strides),
        )


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """numpy's type for an element; types that numpy lacks are raw bytes of their size.

    >>> numpy_dtype(DType.of("bfloat16"))
    dtype('V2')
    """
    known = {"float64", "float32", "float16", "uint8", "int8"}
    return np.dtype(dtype.name if dtype.name in known else f"V{dtype.nbytes}")


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    raw = np.zeros(nbytes + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]


def _held(rank: RankLayout) -> Iterator[tuple[Shard, Place]]:
    for shard in rank.shards:
        for place in shard.places:
            yield shard, place


def _first_kept(shard: Shard, portion: Portion | None) -> int:
    """The first entry of a portion in a shard with a token axis."""
    if portion is None or shard.array.tokens is None or not keeps_all_tokens(shard.array):
        return 0
    return portion.kept_start // shard.array.tokens.tokens_per_entry


def _running_block(shard: Shard, tables: Tables) -> int:
    return tables[shard.group][len(tables[shard.group]) - 1 - shard.scratch_blocks]


def _locations(
    shard: Shard, tables: Tables, entries: NDArray[np.int64]
) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """Of these entries the ones that the shard has a block for, and their (block, kernel block, entry) in its view."""
    share, geometry = shard.tokens, shard.geometry
    if share is not None and share.count > 1:
        entries = entries[share.holds(entries)]
    local = entries if share is None else share.local(entries)
    position, within = np.divmod(local, geometry.block_entries)
    blocks = np.asarray(tables[shard.group], dtype=np.int64)[position]
    there = blocks != NULL_BLOCK
    kernel, entry = np.divmod(within[there], geometry.kernel_block_entries)
    return entries[there], (blocks[there], kernel, entry)


def _empty(shard: Shard, num_tokens: int) -> CapturedArray:
    axes = tuple(axis.size for axis in shard.array.axes)
    dtype = numpy_dtype(shard.array.dtype)
    if shard.array.tokens is None:
        return CapturedArray(0, np.zeros(axes, dtype=dtype))
    rate = shard.array.tokens.tokens_per_entry
    first = min(shard.array.tokens.reach.first_needed(num_tokens), num_tokens) // rate
    return CapturedArray(first, np.zeros((num_tokens // rate - first, *axes), dtype=dtype))


def _join(key: ArrayKey, whole: NDArray[Any], filled: NDArray[np.bool_], held: Any, values: NDArray[Any]) -> None:
    """Puts a shard's values into the whole array; where another rank already did, they must be the same bytes."""
    known = filled[held]
    if not np.array_equal(whole[held][known].view(np.uint8), values[known].view(np.uint8)):
        raise LocalProtocolError(f"{key[0]} {key[1]}: two ranks hold different bytes for the same elements")
    whole[held] = values
    filled[held] = True
