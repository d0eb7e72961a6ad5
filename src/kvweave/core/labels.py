"""Labelled memory: what each element of a rank's memory is.

Every element gets a label made of array, layer, entry and position in the whole model, and is addressed on its own,
straight from the layout, without the plan's intersections, segments or merged runs. A rank's regions lie behind one
another in its flat memory, as devices may use equal addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout, Place, RankLayout, Shard
from kvweave.core.sample import Tables, all_shards


class Wanted(NamedTuple):
    """What a target wants: entries from ``start_token`` on; behind the reach only where the source still has them."""

    start_token: int
    at_source: Mapping[tuple[str, str], npt.NDArray[np.bool_]]


class Labels(NamedTuple):
    """Labelled memory of one rank, by rising position in its flat memory: element position, size, label."""

    address: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]

    def at(self, address: npt.NDArray[np.uint64], nbytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The label of the bytes at each position; -1 where no one element holds all of them."""
        found = np.maximum(np.searchsorted(self.address, address, side="right") - 1, 0)
        within = (address - self.address[found]).astype(np.int64)
        inside = (address >= self.address[found]) & (within + nbytes <= self.nbytes[found])
        return np.where(inside, self.label[found] + within, -1)


class Numbering(NamedTuple):
    """A number for every array, and the parts whose last axis is whole and contiguous wherever they lie."""

    numbers: Mapping[tuple[str, str], int]
    whole: frozenset[str]

    @staticmethod
    def of(*layouts: EngineLayout) -> Numbering:
        """The numbering of everything that these engines hold."""
        shards = [shard for layout in layouts for _, shard in all_shards(layout)]
        names = {(place.layer, shard.array.part) for shard in shards for place in shard.places}
        cut = {shard.array.part for shard in shards if not _has_whole_last_axis(shard)}
        parts = frozenset(shard.array.part for shard in shards)
        return Numbering({name: number for number, name in enumerate(sorted(names))}, parts - cut)


def _has_whole_last_axis(shard: Shard) -> bool:
    axes = shard.array.axes
    return (
        bool(axes)
        and shard.geometry.axis_strides[-1] == shard.array.dtype.nbytes
        and shard.extents[-1] == axes[-1].size
    )


def label_rank(
    rank: RankLayout,
    tables: Tables,
    num_tokens: int,
    numbers: Numbering,
    wanted: Wanted | None,
) -> Labels:
    """The rank's labelled memory; with ``wanted`` only what a target wants of it."""
    if not rank.shards:
        return Labels(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    shards = [part for shard in rank.shards for part in _alike(shard, wanted)]
    parts = [_shard_labels(rank, shard, tables[shard.group], num_tokens, numbers, wanted) for shard in shards]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return Labels(*(column[order] for column in joined))


def _alike(shard: Shard, wanted: Wanted | None) -> Iterator[Shard]:
    """The shard cut into layers of which the source has the same entries."""
    if wanted is None or shard.array.tokens is None:
        yield shard
        return
    places: dict[bytes, list[Place]] = defaultdict(list)
    for place in shard.places:
        places[wanted.at_source[place.layer, shard.array.part].tobytes()].append(place)
    for same in places.values():
        yield replace(shard, places=tuple(same))


def _shard_labels(
    rank: RankLayout,
    shard: Shard,
    table: npt.NDArray[np.int64],
    num_tokens: int,
    numbers: Numbering,
    wanted: Wanted | None,
) -> Labels:
    entries, offsets = _entry_offsets(shard, table, num_tokens, wanted)
    positions, inside, nbytes = _elements(shard, shard.array.part in numbers.whole)
    per_entry = shard.array.entry_bytes
    labels = (entries[:, None] * per_entry + positions).ravel()
    relative = (offsets[:, None] + inside).ravel().astype(np.uint64)
    starts = _flat_starts(rank)
    bases = [int(starts[place.region]) + place.offset for place in shard.places]
    identities = [numbers.numbers[place.layer, shard.array.part] << 44 for place in shard.places]
    address = (np.array(bases, dtype=np.uint64)[:, None] + relative).ravel()
    label = (np.array(identities, dtype=np.int64)[:, None] + labels).ravel()
    return Labels(address, np.full(len(address), nbytes, dtype=np.int64), label)


def _entry_offsets(
    shard: Shard, table: npt.NDArray[np.int64], num_tokens: int, wanted: Wanted | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The entries that lie in memory, and each one's byte offset, one by one."""
    geometry = shard.geometry
    if shard.tokens is None or shard.array.tokens is None:
        block = table[len(table) - 1 - shard.scratch_blocks :][: min(1, num_tokens)]
        return np.zeros(len(block), dtype=np.int64), block * geometry.block_stride
    rate = shard.array.tokens.tokens_per_entry
    entries = np.arange((wanted.start_token if wanted else 0) // rate, num_tokens // rate, dtype=np.int64)
    if wanted is not None:
        needed = entries >= shard.array.tokens.reach.first_needed(num_tokens) // rate
        entries = entries[needed | wanted.at_source[shard.places[0].layer, shard.array.part][entries]]
    entries = entries[entries // shard.tokens.interleave % shard.tokens.count == shard.tokens.index]
    turn = shard.tokens.interleave * shard.tokens.count
    local = entries // turn * shard.tokens.interleave + entries % shard.tokens.interleave
    blocks = table[local // geometry.block_entries]
    entries, local, blocks = (column[blocks != NULL_BLOCK] for column in (entries, local, blocks))
    within = local % geometry.block_entries
    kernel, rest = within // geometry.kernel_block_entries, within % geometry.kernel_block_entries
    return entries, blocks * geometry.block_stride + kernel * geometry.kernel_stride + rest * geometry.entry_stride


def num_entries(shard: Shard, num_tokens: int) -> int:
    """How many entries that many tokens make; 1 for a state."""
    return 1 if shard.array.tokens is None else num_tokens // shard.array.tokens.tokens_per_entry


def entries_at_source(
    prefill: EngineLayout, tables: Tables, num_tokens: int
) -> dict[tuple[str, str], npt.NDArray[np.bool_]]:
    """For each array, which entries lie in some source rank's memory."""
    found: dict[tuple[str, str], npt.NDArray[np.bool_]] = {}
    seen: set[object] = set()
    for _, shard in all_shards(prefill):
        alike = (shard.array.part, shard.layers, shard.group, shard.tokens, shard.geometry.block_entries)
        if alike in seen:
            continue
        seen.add(alike)
        held = np.zeros(num_entries(shard, num_tokens), dtype=np.bool_)
        held[_entry_offsets(shard, tables[shard.group], num_tokens, None)[0]] = True
        for place in shard.places:
            key = (place.layer, shard.array.part)
            found[key] = found[key] | held if key in found else held
    return found


def _elements(shard: Shard, last_axis_whole: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Of one entry: each element's byte position in the whole model's array, its byte offset in memory, and its size.

    The last axis counts as one element where it is whole and contiguous on both sides.
    """
    item = shard.array.dtype.nbytes
    axes = list(zip(shard.array.axes, shard.box, shard.geometry.axis_strides, strict=True))
    nbytes, reach = item, item
    if last_axis_whole:
        nbytes = reach = item * axes.pop()[0].size
    positions = inside = np.zeros(1, dtype=np.int64)
    for axis, interval, stride in reversed(axes):
        steps = np.arange(len(interval), dtype=np.int64)[:, None]
        positions = ((steps + interval.start) * reach + positions).ravel()
        inside = (steps * stride + inside).ravel()
        reach *= axis.size
    return positions, inside, nbytes


def _flat_starts(rank: RankLayout) -> npt.NDArray[np.uint64]:
    """Where each region begins when a rank's regions lie behind one another: devices may use equal addresses."""
    return np.cumsum([0, *(region.nbytes for region in rank.regions)], dtype=np.uint64)


def flat_positions(
    rank: RankLayout, regions: npt.NDArray[np.int32], address: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """The positions of addresses in the rank's flat memory."""
    starts = np.array([region.address for region in rank.regions], dtype=np.uint64)
    return address - starts[regions] + _flat_starts(rank)[regions]
