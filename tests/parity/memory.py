"""Labelled memory: every byte carries which element of the model it belongs to, and from which prefill rank it came.

A label is ``rank * RANK + position of the byte in the whole model's cache``. Equal labels on the target after both
transfers mean that both read the same byte of the same rank. Which element belongs where is computed here by direct
indexing, from vLLM's own split of weights, and not with kvweave's boxes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import kvweave.core.spec as kv
from kvweave.core.array import Axis, CacheArray
from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout, RankLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.plan import plan_transfer
from tests.parity.cases import Case
from tests.parity.incumbent import Labels, Regions, Transfer

RANK = 2**40
Key = tuple[int, str]
Views = dict[Key, Labels]


@dataclass(frozen=True)
class Side:
    """One engine of a transfer: its tp, tokens per block, and block tables."""

    tp: int
    block_size: int
    num_blocks: int
    tables: tuple[list[int], ...]

    def entries(self, array: CacheArray) -> int:
        return self.block_size if array.tokens is not None else 1


def sides(transfer: Transfer) -> tuple[Side, Side]:
    tables = (transfer.source_blocks, transfer.target_blocks)
    prefill, decode = (
        Side(tp, block, transfer.num_blocks, table)
        for tp, block, table in zip(transfer.pair, transfer.block_sizes, tables, strict=True)
    )
    return prefill, decode


def arrays(case: Case) -> Iterator[tuple[int, CacheArray]]:
    for number, spec in enumerate(case.groups):
        assert not isinstance(spec, kv.UniformTypeKVCacheSpecs), "byte cases have one layer per group"
        yield from ((number, array) for array in spec.arrays())


def held(axis: Axis, tp: int, rank: int) -> slice:
    """What a tensor rank holds of an axis: its share of the units, or the one unit that it shares with neighbours."""
    if axis.units == 0:
        return slice(0, axis.size)
    unit = axis.size // axis.units
    count = max(1, axis.units // tp)
    first = rank * axis.units // tp
    return slice(first * unit, (first + count) * unit)


@lru_cache(maxsize=64)
def model_labels(case: Case, num_tokens: int) -> Views:
    """The whole model's cache, numbered byte by byte: (entry, *axes, byte) per group and part."""
    found, start = {}, 0
    for group, array in arrays(case):
        entries = num_tokens if array.tokens is not None else 1
        shape = (entries, *(axis.size for axis in array.axes), array.dtype.nbytes)
        found[group, array.part] = np.arange(start, start + np.prod(shape), dtype=np.int64).reshape(shape)
        start += int(np.prod(shape))
    return found


def rank_labels(case: Case, side: Side, rank: int, num_tokens: int) -> Views:
    """What one rank must hold: the labels of its own elements, in the order of its tokens."""
    whole = model_labels(case, num_tokens)
    return {
        (group, array.part): whole[group, array.part][
            (slice(None), *(held(axis, side.tp, rank) for axis in array.axes))
        ]
        for group, array in arrays(case)
    }


def fill(case: Case, views: Views, side: Side, rank: int, num_tokens: int) -> None:
    """Put a prefill rank's labels where its block tables say."""
    for (group, part), labels in rank_labels(case, side, rank, num_tokens).items():
        view = views[group, part]
        entries = view.shape[1]
        for position, block in enumerate(side.tables[group]):
            piece = labels[position * entries : (position + 1) * entries]
            view[block, : len(piece)] = piece + rank * RANK


def collect(case: Case, views: Views, side: Side, num_tokens: int) -> Views:
    """A rank's memory read back in the order of its tokens."""
    found = {}
    for group, array in arrays(case):
        blocks = views[group, array.part][side.tables[group]]
        entries = num_tokens if array.tokens is not None else 1
        found[group, array.part] = blocks.reshape(-1, *blocks.shape[2:])[:entries]
    return found


def vllm_views(case: Case, side: Side, rank: int, regions: Regions, memory: list[Labels]) -> Views:
    """The pages of vLLM's LBHNC layout, part by part: (block, entry, *axes, byte)."""
    views: Views = {}
    for group, spec in enumerate(case.groups):
        pages = memory[0 if regions.shared else group]
        if isinstance(spec, kv.MambaSpec):
            views |= _state_views(group, spec, side, rank, pages)
        else:
            views |= _attention_views(group, spec, side, rank, pages)
    return views


def _attention_views(
    group: int, spec: kv.LayerSpec | kv.UniformTypeKVCacheSpecs, side: Side, rank: int, pages: Labels
) -> Views:
    assert isinstance(spec, kv.FullAttentionSpec | kv.MLAAttentionSpec)
    parts = spec.arrays()
    heads = len(range(*held(parts[0].axes[0], side.tp, rank).indices(2**20))) if len(parts) > 1 else 1
    width = spec.head_size * spec.dtype.nbytes
    used = pages[:, : heads * side.block_size * width * len(parts)]
    cells = used.reshape(len(pages), heads, side.block_size, len(parts), spec.head_size, spec.dtype.nbytes)
    if len(parts) == 1:
        return {(group, parts[0].part): cells[:, 0, :, 0]}
    return {(group, array.part): cells[:, :, :, number].transpose(0, 2, 1, 3, 4) for number, array in enumerate(parts)}


def _state_views(group: int, spec: kv.MambaSpec, side: Side, rank: int, pages: Labels) -> Views:
    views, start = {}, 0
    for array in spec.arrays():
        extents = [len(range(*held(axis, side.tp, rank).indices(2**20))) for axis in array.axes]
        nbytes = int(np.prod(extents)) * array.dtype.nbytes
        view = pages[:, start : start + nbytes].reshape(len(pages), 1, *extents, array.dtype.nbytes)
        views[group, array.part] = view
        start += nbytes
    return views


@dataclass(frozen=True)
class KVWeaveRank:
    """A rank's regions as label memory."""

    layout: RankLayout
    regions: list[Labels]

    @staticmethod
    def of(layout: RankLayout) -> KVWeaveRank:
        return KVWeaveRank(layout, [np.full(region.nbytes, -1, dtype=np.int64) for region in layout.regions])

    def views(self) -> Views:
        return {
            (int(shard.group), shard.array.part): self._view(number) for number, shard in enumerate(self.layout.shards)
        }

    def _view(self, number: int) -> Labels:
        shard = self.layout.shards[number]
        geometry, place = shard.geometry, shard.places[0]
        shape = (shard.num_blocks, geometry.block_entries, *shard.extents, shard.array.dtype.nbytes)
        strides = (geometry.block_stride, geometry.entry_stride, *geometry.axis_strides, 1)
        start = self.regions[place.region][place.offset :]
        return np.lib.stride_tricks.as_strided(start, shape, [stride * start.itemsize for stride in strides])


def layout_of(case: Case, side: Side) -> EngineLayout:
    """The same engine in kvweave's words: HND, K and V packed, channel-major conv states."""
    groups = tuple(
        KVCacheGroup(str(number), (CacheLayer(f"layers.{number}", 0, spec),))
        for number, spec in enumerate(case.groups)
        if not isinstance(spec, kv.UniformTypeKVCacheSpecs)
    )
    config = CacheConfig(block_size=side.block_size, layout="HND", num_blocks=side.num_blocks, conv_order="DS")
    return EngineLayout.build(ModelCache(case.name, 1, groups), ParallelConfig(tp=side.tp), config)


def kvweave_results(case: Case, transfer: Transfer, num_tokens: int) -> list[Views]:
    """Every decode rank's memory after the rows of kvweave's plan were copied."""
    prefill, decode = sides(transfer)
    plan = plan_transfer(layout_of(case, prefill), layout_of(case, decode))
    sources = [KVWeaveRank.of(rank) for rank in plan.prefill.ranks]
    for number, source in enumerate(sources):
        fill(case, source.views(), prefill, number, num_tokens)
    results = []
    for rank in plan.decode.ranks:
        target = KVWeaveRank.of(rank)
        _copy_rows(plan.descriptors(rank, list(prefill.tables), list(decode.tables), num_tokens), sources, target)
        results.append(collect(case, target.views(), decode, num_tokens))
    return results


def _copy_rows(descriptors: object, sources: list[KVWeaveRank], target: KVWeaveRank) -> None:
    for coordinates, rows in descriptors.items():  # type: ignore[attr-defined]
        assert isinstance(coordinates, RankCoordinates)
        source = sources[coordinates.tp]
        for row in range(len(rows)):
            read, written = int(rows.source_region[row]), int(rows.target_region[row])
            start = int(rows.source_address[row]) - source.layout.regions[read].address
            end = int(rows.target_address[row]) - target.layout.regions[written].address
            size = int(rows.nbytes[row])
            target.regions[written][end : end + size] = source.regions[read][start : start + size]
