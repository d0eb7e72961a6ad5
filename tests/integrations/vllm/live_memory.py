"""A request's arrays read out of this process's memory, by the addresses and strides of a layout of one rank."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout, Place, RankLayout, Shard


def read_arrays(layout: EngineLayout, tables: Any, num_tokens: int) -> dict[tuple[str, str], tuple[int, Any]]:
    """(layer, part) to the first entry and the entries (entry, *axes) from there on; a state is (0, (*axes))."""
    (rank,) = layout.ranks
    return {
        (place.layer, shard.array.part): _read(rank, shard, place, tables[shard.group], num_tokens)
        for shard in rank.shards
        for place in shard.places
    }


def _read(rank: RankLayout, shard: Shard, place: Place, table: Any, num_tokens: int) -> tuple[int, Any]:
    geometry, dtype = shard.geometry, getattr(torch, shard.array.dtype.name)
    region = rank.regions[place.region]
    buffer = (ctypes.c_char * region.nbytes).from_address(region.address)
    kernels = geometry.block_entries // geometry.kernel_block_entries
    memory = np.ndarray(
        (shard.num_blocks, kernels, geometry.kernel_block_entries, *shard.extents),
        f"V{dtype.itemsize}", buffer, place.offset,
        (geometry.block_stride, geometry.kernel_stride, geometry.entry_stride, *geometry.axis_strides),
    )  # fmt: skip
    if shard.array.tokens is None:
        return 0, _values(memory[int(table[0]), 0, 0], dtype)
    entries = np.arange(num_tokens // shard.array.tokens.tokens_per_entry)
    blocks = np.asarray(table)[entries // geometry.block_entries]
    first = int(np.count_nonzero(blocks == NULL_BLOCK))
    kernel, entry = np.divmod(entries % geometry.block_entries, geometry.kernel_block_entries)
    return first, _values(memory[blocks[first:], kernel[first:], entry[first:]], dtype)


def _values(raw: Any, dtype: torch.dtype) -> Any:
    """float32 values of raw elements."""
    kind = {1: np.uint8, 2: np.int16, 4: np.int32}[dtype.itemsize]
    contiguous = np.ascontiguousarray(raw)
    whole = torch.from_numpy(np.frombuffer(contiguous.tobytes(), kind).copy()).view(dtype).float()
    return whole.numpy().reshape(raw.shape)
