"""The byte oracle: what a transfer must do to memory, computed without any of the planner's code.

Each byte of each source rank gets a label that says what it is: array, entry, position in the whole model's entry. The
target's memory begins as guard labels. The plan's rows are followed as plain copies of bytes, and the whole memory of
the target is compared with the answer that the images (``memory_image.py``) give by direct indexing:

- every wanted byte bears its own label, and was written exactly once;
- no other byte was touched, padding and blocks of other requests included;
- the blocks that the source could not fill are named, and no others.

Faults come back as text, one line for each kind and rank; an empty list is a proof for this request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.descriptors import RequestDescriptors
from kvweave.core.layout import EngineLayout, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan
from kvweave.core.rows import Rows
from kvweave.testing.memory_image import ArrayName, HeldArray, Positions, RankImage
from kvweave.testing.requests import Request, Table, first_needed, images_of

GUARD, UNSET = -1, -2
_ARRAY_BITS = 40

Labels = npt.NDArray[np.int64]


class _Side(NamedTuple):
    """One engine: its ranks' images and layouts, and where each region begins in the rank's flat memory."""

    layout: EngineLayout
    images: Mapping[RankCoordinates, RankImage]


class Oracle:
    """Knows what any request between two engines must do. The layouts give the user's statement and the addresses."""

    def __init__(self, prefill: EngineLayout, decode: EngineLayout) -> None:
        self._prefill, self._decode = (
            _Side(layout, dict(zip(layout.parallel.ranks(), images_of(layout), strict=True)))
            for layout in (prefill, decode)
        )
        names = {
            name for side in (self._prefill, self._decode) for image in side.images.values() for name in image.arrays
        }
        self._numbers = {name: number for number, name in enumerate(sorted(names))}

    @property
    def images(self) -> tuple[list[RankImage], list[RankImage]]:
        """The images of the prefill and of the decode ranks, for making block tables."""
        return list(self._prefill.images.values()), list(self._decode.images.values())

    def problems(self, request: Request, described: Mapping[RankCoordinates, RequestDescriptors]) -> list[str]:
        """What is wrong with the rows of these target ranks."""
        sources = {rank: self._labelled(image, request) for rank, image in self._prefill.images.items()}
        present = self._present(request)
        found: list[str] = []
        for target, rows in described.items():
            wanted, incomplete = self._wanted(self._decode.images[target], request, present)
            found += [f"target {target}: {text}" for text in self._compare(target, rows, sources, wanted)]
            named = {group: tuple(sorted(blocks)) for group, blocks in incomplete.items() if blocks}
            if dict(rows.incomplete) != named:
                found.append(f"target {target}: incomplete blocks {dict(rows.incomplete)}, but they are {named}")
        return found

    def moved_bytes(self, request: Request) -> dict[RankCoordinates, int]:
        """How many bytes each target rank must receive."""
        present = self._present(request)
        wanted = {rank: self._wanted(image, request, present)[0] for rank, image in self._decode.images.items()}
        return {rank: int(np.count_nonzero(labels != GUARD)) for rank, labels in wanted.items()}

    def _labelled(self, image: RankImage, request: Request) -> Labels:
        memory = np.full(sum(image.buffers), UNSET, dtype=np.int64)
        for name, held in image.arrays.items():
            stored = _in_memory(held, request.source[held.group], request.num_tokens)
            memory[stored.where + _start(image, held)] = self._labels(name, held, stored.entries)
        return memory

    def _labels(self, name: ArrayName, held: HeldArray, entries: Positions) -> Labels:
        sizes = [axis.size for axis in held.array.axes]
        item = held.array.dtype.nbytes
        whole = np.arange(held.array.entry_bytes).reshape(*sizes, item)
        mine = whole[np.ix_(*held.elements, np.arange(item))]
        return (self._numbers[name] << _ARRAY_BITS) + np.add.outer(entries * held.array.entry_bytes, mine)

    def _present(self, request: Request) -> dict[ArrayName, set[int]]:
        """The entries of each array that are in some source rank's memory."""
        present: dict[ArrayName, set[int]] = {name: set() for name in self._numbers}
        for image in self._prefill.images.values():
            for name, held in image.arrays.items():
                stored = _in_memory(held, request.source[held.group], request.num_tokens)
                present[name].update(stored.entries.tolist())
        return present

    def _wanted(
        self, image: RankImage, request: Request, present: Mapping[ArrayName, set[int]]
    ) -> tuple[Labels, dict[str, set[int]]]:
        """The target's memory as it must be, and the blocks with wanted entries that no source has."""
        memory = np.full(sum(image.buffers), GUARD, dtype=np.int64)
        incomplete: dict[str, set[int]] = {}
        for name, held in image.arrays.items():
            entries, blocks, where = _in_memory(held, request.target[held.group], request.num_tokens)
            missing = np.zeros(len(entries), dtype=np.bool_)
            if held.array.tokens is not None:
                last_tokens = (entries + 1) * held.array.tokens.tokens_per_entry - 1
                new = last_tokens >= request.start_token
                entries, blocks, where, last_tokens = entries[new], blocks[new], where[new], last_tokens[new]
                visible = last_tokens >= first_needed(held.array.tokens, request.num_tokens)
                missing = ~visible & ~np.isin(entries, list(present[name]))
            incomplete.setdefault(held.group, set()).update(blocks[missing].tolist())
            memory[where[~missing] + _start(image, held)] = self._labels(name, held, entries[~missing])
        return memory, incomplete

    def _compare(
        self,
        target: RankCoordinates,
        described: Mapping[RankCoordinates, Rows],
        sources: Mapping[RankCoordinates, Labels],
        wanted: Labels,
    ) -> Iterator[str]:
        memory = np.full(len(wanted), GUARD, dtype=np.int64)
        hits = np.zeros(len(wanted), dtype=np.int64)
        for source, rows in described.items():
            origin = _flat(self._prefill, source, rows.source_address, rows.source_region, rows)
            destination = _flat(self._decode, target, rows.target_address, rows.target_region, rows)
            if origin is None or destination is None:
                yield f"a row leaves its region between {source} and {target}"
                continue
            memory[destination] = sources[source][origin]
            hits += np.bincount(destination, minlength=len(hits))
        faults = {
            "bytes are written more than once": hits > 1,
            "wanted bytes are not written": (wanted != GUARD) & (hits == 0),
            "bytes are written that nobody wanted": (wanted == GUARD) & (hits > 0),
            "bytes are not the ones that were wanted": (wanted != GUARD) & (hits > 0) & (memory != wanted),
        }
        for text, where in faults.items():
            if where.any():
                yield f"{np.count_nonzero(where)} {text}, first {self._named(int(wanted[where][0]))}"

    def _named(self, label: int) -> str:
        if label < 0:
            return "beside every array"
        layer, part = {number: name for name, number in self._numbers.items()}[label >> _ARRAY_BITS]
        return f"{layer} {part}, byte {label & ((1 << _ARRAY_BITS) - 1)} of the whole"


def check_plan(plan: TransferPlan, request: Request, oracle: Oracle | None = None) -> list[str]:
    """Every fault in the rows that ``plan`` gives for ``request``, over all target ranks."""
    tables, tokens = (request.source, request.target), (request.num_tokens, request.start_token)
    described = {
        target: plan.descriptors(target, *tables, *tokens, request.salt, request.stripes) for target in plan.reads
    }
    return (oracle or Oracle(plan.prefill, plan.decode)).problems(request, described)


def layout_problems(layout: EngineLayout) -> list[str]:
    """Where a built layout's boxes and strides place an element elsewhere than the images do."""
    problems = []
    for rank, image in zip(layout.ranks, images_of(layout), strict=True):
        placed = {(place.layer, shard.array.part) for shard in rank.shards for place in shard.places}
        if placed != set(image.arrays):
            problems.append(f"{rank.coordinates}: arrays {sorted(placed ^ set(image.arrays))} are on one side only")
        for shard in rank.shards:
            for place in shard.places:
                held = image.arrays.get((place.layer, shard.array.part))
                if held is not None and not _same_places(shard, place.offset, held):
                    problems.append(f"{rank.coordinates}: {place.layer} {shard.array.part} lies elsewhere")
                if held is not None and image.buffers[held.buffer] != rank.regions[place.region].nbytes:
                    problems.append(f"{rank.coordinates}: the region of {place.layer} has another size")
    return problems


def _same_places(shard: Shard, offset: int, held: HeldArray) -> bool:
    boxes = [np.arange(interval.start, interval.stop) for interval in shard.box]
    if not all(np.array_equal(mine, theirs) for mine, theirs in zip(boxes, held.elements, strict=True)):
        return False
    geometry = shard.geometry
    entry = np.arange(geometry.block_entries)
    steps = [np.arange(shard.num_blocks) * geometry.block_stride]
    steps += [
        entry // geometry.kernel_block_entries * geometry.kernel_stride
        + entry % geometry.kernel_block_entries * geometry.entry_stride
    ]
    steps += [np.arange(len(box)) * stride for box, stride in zip(boxes, geometry.axis_strides, strict=True)]
    where = np.array(offset)
    for step in [*steps, np.arange(shard.array.dtype.nbytes)]:
        where = np.add.outer(where, step)
    return np.array_equal(where, held.bytes_at)


class _Stored(NamedTuple):
    """What of an array is in memory: entries, the blocks that hold them, the positions of their bytes."""

    entries: Positions
    blocks: Positions
    where: Positions


def _in_memory(held: HeldArray, table: Table, num_tokens: int) -> _Stored:
    entries = held.entries(num_tokens)
    if held.dealt is None:
        running = np.asarray(table)[[len(table) - 1 - held.scratch_blocks]]
        return _Stored(entries, running, held.bytes_at[running, 0])
    places = np.arange(len(entries))
    blocks = np.asarray(table)[places // held.block_entries]
    there = blocks != NULL_BLOCK
    return _Stored(entries[there], blocks[there], held.bytes_at[blocks[there], places[there] % held.block_entries])


def _start(image: RankImage, held: HeldArray) -> int:
    """Where an array's buffer begins in the rank's flat memory."""
    return sum(image.buffers[: held.buffer])


def _flat(
    side: _Side, rank: RankCoordinates, address: npt.NDArray[np.uint64], regions: npt.NDArray[np.int32], rows: Rows
) -> Positions | None:
    """Positions in the rank's flat memory of every byte of the rows; None if one lies outside its region."""
    layout, image = side.layout.at(rank), side.images[rank]
    starts = np.array([region.address for region in layout.regions], dtype=np.uint64)[regions]
    sizes = np.array([region.nbytes for region in layout.regions], dtype=np.uint64)[regions]
    if np.any(address < starts) or np.any(address - starts + rows.nbytes > sizes):
        return None
    buffers = _buffers_of_regions(layout, image)
    begins = np.cumsum([0, *image.buffers])[buffers[regions]]
    first = begins + (address - starts).astype(np.int64)
    nbytes = rows.nbytes.astype(np.int64)
    within = np.arange(nbytes.sum()) - np.repeat(np.cumsum(nbytes) - nbytes, nbytes)
    positions: Positions = np.repeat(first, nbytes) + within
    return positions


def _buffers_of_regions(layout: RankLayout, image: RankImage) -> Positions:
    """For each region of the layout, the image's buffer that holds the same arrays."""
    buffers = np.zeros(len(layout.regions), dtype=np.int64)
    for shard in layout.shards:
        for place in shard.places:
            buffers[place.region] = image.arrays[place.layer, shard.array.part].buffer
    return buffers
