"""Where an engine keeps what, stated a second time: numpy shapes over byte positions, no strides.

A rank's image says, for every array that it holds, at which byte of which buffer each element lies, and which elements
of the whole model these are. It is written from the user's statement alone (model, parallel sizes, cache settings) and
shares no code with ``core.sharding``, ``core.tokens`` and ``core.build``. A memory order is the order in which the
letters of its name nest::

    LBHNC    layer | block | kernel block, K or V, head, token, content        one buffer per layer
    BLNHC    block | kernel block, layer, K or V, token, head, content         one buffer for all layers

The bar is where padding goes: after what one block keeps together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, prod

import numpy as np
import numpy.typing as npt

from kvweave.core.array import Axis, CacheArray, DType
from kvweave.core.cache_config import CacheConfig
from kvweave.core.model import KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates

Positions = npt.NDArray[np.int64]
ArrayName = tuple[str, str]
"""Layer and part."""

_NESTING = {
    "LBHNC": ("LB", "KPHNC"),
    "LBNHC": ("LB", "KPNHC"),
    "LHBNC": ("LHB", "KPNC"),
    "BLHNC": ("B", "KLPHNC"),
    "BLNHC": ("B", "KLPNHC"),
    "BHLNC": ("B", "KHLPNC"),
}
"""What is outside a block, and what is inside: K kernel block, P key or value, H head, N token, C content."""


@dataclass(frozen=True, eq=False)
class HeldArray:
    """One array on one rank.

    ``bytes_at`` has the axes (block, entry, *axes of the array, byte of the element) and gives positions in ``buffer``.
    ``elements`` names, per axis, the elements of the whole model. ``dealt`` is (dcp, dcp rank, interleave), or None for
    a state; ``scratch_blocks`` how many blocks end a state's table.
    """

    group: str
    array: CacheArray
    buffer: int
    bytes_at: Positions
    elements: tuple[Positions, ...]
    dealt: tuple[int, int, int] | None
    scratch_blocks: int

    @property
    def block_entries(self) -> int:
        """Entries of one block on this rank."""
        return int(self.bytes_at.shape[1])

    def entries(self, num_tokens: int) -> Positions:
        """The entries of a request that this rank keeps, in the order in which it keeps them."""
        if self.dealt is None or self.array.tokens is None:
            return np.zeros(1, dtype=np.int64)
        ranks, rank, interleave = self.dealt
        existing = np.arange(num_tokens // self.array.tokens.tokens_per_entry)
        mine: Positions = existing[existing // interleave % ranks == rank]
        return mine


@dataclass(frozen=True, eq=False)
class RankImage:
    """One rank's memory: buffer sizes in bytes, and every array that it holds."""

    buffers: tuple[int, ...]
    arrays: Mapping[ArrayName, HeldArray]

    def contents(self, buffer: int) -> frozenset[ArrayName]:
        """The arrays that lie in one buffer."""
        return frozenset(name for name, held in self.arrays.items() if held.buffer == buffer)


def rank_image(model: ModelCache, parallel: ParallelConfig, cache: CacheConfig, rank: RankCoordinates) -> RankImage:
    """The memory of one rank of an engine of that model, those sizes and those settings."""
    buffers: list[int] = []
    arrays: dict[ArrayName, HeldArray] = {}
    for group in model.groups:
        for layers, stored in _stored_together(group, parallel, cache, rank, model.num_layers):
            for parts in _sharing_memory(stored, cache):
                for buffer_layers, nbytes, positions in _arranged(parts, layers, cache, _block_tokens(group, cache)):
                    for place, layer in enumerate(buffer_layers):
                        for part, where in zip(parts, positions, strict=True):
                            arrays[layer, part.array.part] = _held(
                                group.name, part, len(buffers), where[place], parallel, cache, rank
                            )
                    buffers.append(nbytes)
    return RankImage(tuple(buffers), arrays)


@dataclass(frozen=True, eq=False)
class _Stored:
    array: CacheArray
    elements: tuple[Positions, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(len(chosen) for chosen in self.elements)

    @property
    def nbytes(self) -> int:
        return prod(self.extents) * self.array.dtype.nbytes

    @property
    def heads(self) -> int:
        return prod(n for n, axis in zip(self.extents, self.array.axes, strict=True) if axis.name == "head")

    @property
    def is_conv(self) -> bool:
        return self.array.part.startswith("conv.")


def tensor_share(axis: Axis, parallel: ParallelConfig, tensor_rank: int) -> Positions:
    """The elements of an axis that a tensor rank holds; raises ``ValueError`` for sizes that fit no engine."""
    elements = np.arange(axis.size)
    if axis.units == 0:
        return elements
    units = elements.reshape(axis.units, -1)
    stated = parallel.stated.get(axis.name, ())
    if stated and max(interval.stop for interval in stated) == axis.units:
        return units[stated[tensor_rank].start : stated[tensor_rank].stop].ravel()
    if axis.units < parallel.tp:
        units = np.repeat(units, parallel.tp // axis.units, axis=0)
    share: Positions = units.reshape(parallel.tp, -1)[tensor_rank]
    return share


def stage_of_layers(parallel: ParallelConfig, num_layers: int) -> Positions:
    """The pipeline stage of every layer; surplus layers go to the stages before the last, from the back."""
    counts = [num_layers // parallel.pp] * parallel.pp
    for surplus in range(num_layers % parallel.pp):
        counts[parallel.pp - 2 - surplus] += 1
    return np.repeat(np.arange(parallel.pp), parallel.stage_layers or counts)


def _stored_together(
    group: KVCacheGroup, parallel: ParallelConfig, cache: CacheConfig, rank: RankCoordinates, num_layers: int
) -> Iterator[tuple[list[str], list[_Stored]]]:
    """Layers of equal spec on this rank's stage, and what the rank holds of their arrays."""
    stages = stage_of_layers(parallel, num_layers)
    mine = [layer for layer in group.layers if stages[layer.index] == rank.pp]
    for spec in dict.fromkeys(layer.spec for layer in mine):
        arrays = [_in_cache_dtype(array, cache) for array in spec.arrays()]
        stored = [
            _Stored(array, tuple(tensor_share(axis, parallel, rank.tp) for axis in array.axes)) for array in arrays
        ]
        yield [layer.name for layer in mine if layer.spec == spec], stored


def _in_cache_dtype(array: CacheArray, cache: CacheConfig) -> CacheArray:
    if cache.dtype is None or array.tokens is None:
        return array
    return replace(array, dtype=DType.of(cache.dtype))


def _sharing_memory(stored: list[_Stored], cache: CacheConfig) -> Iterator[list[_Stored]]:
    """The arrays that share buffers: keys with values unless they are apart, and all states of a layer."""
    tokened = [part for part in stored if part.array.tokens is not None]
    states = [part for part in stored if part.array.tokens is None]
    if cache.packing == "region":
        yield from ([part] for part in tokened)
    elif tokened:
        yield tokened
    if states:
        yield states


def _arranged(
    parts: list[_Stored], layers: list[str], cache: CacheConfig, block_tokens: int
) -> Iterator[tuple[list[str], int, list[Positions]]]:
    """Buffers: which layers are in one, its bytes, and per part the positions (layer, block, entry, *axes, byte)."""
    if parts[0].array.tokens is None:
        nbytes, positions = _state_positions(parts, cache)
        yield from (([layer], nbytes, positions) for layer in layers)
    elif cache.layout.startswith("L"):
        nbytes, positions = _token_positions(parts, 1, cache, block_tokens)
        yield from (([layer], nbytes, positions) for layer in layers)
    else:
        yield layers, *_token_positions(parts, len(layers), cache, block_tokens)


def _token_positions(
    parts: list[_Stored], layers: int, cache: CacheConfig, block_tokens: int
) -> tuple[int, list[Positions]]:
    rate = parts[0].array.tokens.tokens_per_entry if parts[0].array.tokens else 1
    entries = block_tokens // rate
    kernel = cache.kernel_block_size if cache.kernel_block_size and rate == 1 else entries
    widths = [part.nbytes // part.heads for part in parts]
    planes = len(parts) if cache.packing == "page" else 1
    extents = {"L": layers, "B": cache.num_blocks, "K": entries // kernel, "P": planes, "H": parts[0].heads}
    extents |= {"N": kernel, "C": sum(widths) // planes}
    outside, inside = _NESTING[cache.layout]
    nbytes, where = _nested(outside, inside, extents, cache.page_padding)
    ordered = where.transpose([(outside + inside).index(letter) for letter in "LBKNPHC"])
    content = ordered.reshape(layers, cache.num_blocks, entries, planes, parts[0].heads, -1)
    found = []
    for number, part in enumerate(parts):
        first = 0 if planes > 1 else sum(widths[:number])
        mine = content[:, :, :, number if planes > 1 else 0, :, first : first + widths[number]]
        found.append(mine.reshape(layers, cache.num_blocks, entries, *part.extents, part.array.dtype.nbytes))
    return nbytes, found


def _nested(outside: str, inside: str, extents: Mapping[str, int], padding: int) -> tuple[int, Positions]:
    """Byte positions with one axis per letter, the last letter fastest; ``padding`` bytes follow each inside."""
    outer, inner = [extents[letter] for letter in outside], [extents[letter] for letter in inside]
    used = prod(inner)
    rows = np.arange(prod(outer) * (used + padding)).reshape(*outer, used + padding)
    return rows.size, rows[..., :used].reshape(*outer, *inner)


def _state_positions(parts: list[_Stored], cache: CacheConfig) -> tuple[int, list[Positions]]:
    """One page per block: the conv sections as one matrix, then each other tensor where its items are aligned."""
    page_bytes, starts = _state_page(parts)
    pages = np.arange(cache.num_blocks * (page_bytes + cache.page_padding)).reshape(cache.num_blocks, -1)
    conv = [part for part in parts if part.is_conv]
    sections = _conv_sections(conv, cache.conv_order, pages) if conv else {}
    found = []
    for part, start in zip(parts, starts, strict=True):
        where = sections.get(part.array.part, pages[:, start : start + part.nbytes])
        found.append(where.reshape(1, cache.num_blocks, 1, *part.extents, part.array.dtype.nbytes))
    return pages.size, found


def _state_page(parts: Sequence[_Stored]) -> tuple[int, list[int]]:
    reach, starts = 0, []
    for part in parts:
        item = part.array.dtype.nbytes
        while not part.is_conv and reach % item:
            reach += 1
        starts.append(reach)
        reach += part.nbytes
    while reach % max(part.array.dtype.nbytes for part in parts):
        reach += 1
    return reach, starts


def _conv_sections(conv: list[_Stored], order: str, pages: Positions) -> dict[str, Positions]:
    """DS: a row per channel, section after section. SD: a row per tap, all sections' channels side by side."""
    taps, item = conv[0].extents[1], conv[0].array.dtype.nbytes
    channels = [part.extents[0] for part in conv]
    matrix = pages[:, : sum(part.nbytes for part in conv)]
    if order == "DS":
        matrix = matrix.reshape(len(pages), sum(channels), taps, item)
    else:
        matrix = matrix.reshape(len(pages), taps, sum(channels), item).swapaxes(1, 2)
    edges = np.cumsum([0, *channels])
    return {part.array.part: matrix[:, edges[n] : edges[n + 1]] for n, part in enumerate(conv)}


def _block_tokens(group: KVCacheGroup, cache: CacheConfig) -> int:
    """Tokens per block: a multiple of the block size that leaves no entry of any array cut."""
    rates = [array.tokens.tokens_per_entry for layer in group.layers for array in layer.spec.arrays() if array.tokens]
    return lcm(cache.block_size, *rates)


def _held(
    group: str,
    part: _Stored,
    buffer: int,
    bytes_at: Positions,
    parallel: ParallelConfig,
    cache: CacheConfig,
    rank: RankCoordinates,
) -> HeldArray:
    tokens = part.array.tokens
    if tokens is None:
        return HeldArray(group, part.array, buffer, bytes_at, part.elements, None, cache.speculative_blocks)
    dealt = (1, 0, 1)
    if tokens.dcp_sharded:
        # Prefill context ranks are neighbours inside a tensor rank, and turns go round all of them, in whole entries.
        turn = parallel.interleave // tokens.tokens_per_entry
        dealt = (parallel.dcp, (rank.tp * parallel.pcp + rank.pcp) % parallel.dcp, turn)
    return HeldArray(group, part.array, buffer, bytes_at, part.elements, dealt, 0)
