"""From a model, parallel sizes and a cache configuration to a complete engine layout.

Arrays with a token axis follow the named memory order. Layer outermost: one region per layer; otherwise one region for
all layers of equal spec. States lie one page per block and layer: the conv sections together (``DS``: one behind the
other, ``SD``: side by side within each tap), then every other tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import lcm, prod

from kvweave.core.array import CacheArray, DType
from kvweave.core.cache_config import CacheConfig, ConvOrder, KeyValuePacking, MemoryKind
from kvweave.core.interval import Box, Interval
from kvweave.core.layout import EngineLayout, Geometry, Place, RankLayout, Region, Shard
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.sharding import box_of, token_share
from kvweave.core.spec import LayerSpec
from kvweave.errors import LayoutError

_FIRST_ADDRESS = 0x7000_0000_0000
_RANK_SPACING = 0x0100_0000_0000
_REGION_ALIGNMENT = 4096
_WIDEST_NUMBER = 8


@dataclass(frozen=True, slots=True)
class _Held:
    """An array as one rank holds it."""

    array: CacheArray
    box: Box

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(len(interval) for interval in self.box)

    @property
    def entry_bytes(self) -> int:
        return prod(self.extents) * self.array.dtype.nbytes

    @property
    def heads(self) -> int:
        """Extent of the head axis, 1 where there is none."""
        return next((len(i) for a, i in zip(self.array.axes, self.box, strict=True) if a.name == "head"), 1)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Strides of one array and the offset of its first element, for layer number n at ``n * layer_stride``."""

    held: _Held
    geometry: Geometry
    offset: int
    layer_stride: int


@dataclass(frozen=True, slots=True)
class _Rank:
    """What stays the same while one rank is laid out."""

    model: ModelCache
    parallel: ParallelConfig
    cache: CacheConfig
    coordinates: RankCoordinates

    def hold(self, array: CacheArray) -> _Held:
        if self.cache.dtype is not None and array.tokens is not None:
            array = _in_dtype(array, DType.of(self.cache.dtype))
        return _Held(array, box_of(array, self.parallel, self.coordinates))


def _in_dtype(array: CacheArray, dtype: DType) -> CacheArray:
    if dtype.nbytes > _WIDEST_NUMBER and array.entry_bytes > array.dtype.nbytes:
        elements = array.entry_bytes // array.dtype.nbytes
        raise LayoutError(
            f"dtype: {dtype.name} is an opaque element of {dtype.nbytes} bytes, {array.part} has {elements} elements "
            "an entry; state such an entry in the model, as one element of that dtype"
        )
    return replace(array, dtype=dtype)


def build_layout(model: ModelCache, parallel: ParallelConfig, cache: CacheConfig) -> EngineLayout:
    """See ``EngineLayout.build``."""
    _check_stated(model, parallel)
    ranks = tuple(
        _lay_out(_Rank(model, parallel, cache, coordinates), _FIRST_ADDRESS + number * _RANK_SPACING)
        for number, coordinates in enumerate(parallel.ranks())
    )
    layout = EngineLayout(model, parallel, ranks, cache)
    _check_coverage(layout)
    return layout


def _lay_out(rank: _Rank, address: int) -> RankLayout:
    stage = rank.parallel.stages(rank.model.num_layers)[rank.coordinates.pp]
    regions: list[Region] = []
    shards: list[Shard] = []
    for group in rank.model.groups:
        block_tokens = group_block_tokens(group, rank.cache.block_size)
        for spec, layers in _layers_by_spec(group, stage):
            for placed, sizes in _arrangements(rank, spec, len(layers), block_tokens):
                numbers = [len(regions) + n for n in range(len(sizes))]
                shards += [_shard(rank, group.name, part, layers, numbers) for part in placed]
                for nbytes in sizes:
                    regions.append(Region(address, nbytes, MemoryKind(rank.cache.memory), rank.cache.device))
                    address += -(-nbytes // _REGION_ALIGNMENT) * _REGION_ALIGNMENT
    return RankLayout(rank.coordinates, tuple(regions), tuple(shards))


def group_block_tokens(group: KVCacheGroup, block_size: int) -> int:
    """Tokens per block of a group: the least multiple of ``block_size`` that holds whole entries of every array.

    >>> from kvweave.core.spec import MLAAttentionSpec
    >>> group_block_tokens(KVCacheGroup("g", (CacheLayer("l", 0, MLAAttentionSpec(8, tokens_per_state=24)),)), 16)
    48
    """
    arrays = (array for layer in group.layers for array in layer.spec.arrays())
    return lcm(block_size, *(array.tokens.tokens_per_entry for array in arrays if array.tokens is not None))


def _layers_by_spec(group: KVCacheGroup, stage: Interval) -> Iterable[tuple[LayerSpec, list[CacheLayer]]]:
    found: dict[LayerSpec, list[CacheLayer]] = defaultdict(list)
    for layer in group.layers:
        if stage.start <= layer.index < stage.stop:
            found[layer.spec].append(layer)
    return found.items()


def _arrangements(
    rank: _Rank, spec: LayerSpec, num_layers: int, block_tokens: int
) -> Iterator[tuple[list[_Placed], list[int]]]:
    """The arrays that share regions, and the byte sizes of those regions."""
    held = [rank.hold(array) for array in spec.arrays()]
    tokened = [part for part in held if part.array.tokens is not None]
    states = [part for part in held if part.array.tokens is None]
    apart = rank.cache.packing == KeyValuePacking.REGION
    for parts in [[part] for part in tokened] if apart else [tokened] if tokened else []:
        yield _paged(rank.cache, parts, num_layers, block_tokens)
    if states:
        yield _state_page(rank.cache, states, num_layers)


def _paged(
    cache: CacheConfig, parts: list[_Held], num_layers: int, block_tokens: int
) -> tuple[list[_Placed], list[int]]:
    """Arrays with a token axis, in the named memory order."""
    rate = parts[0].array.tokens.tokens_per_entry if parts[0].array.tokens else 1
    block_entries = block_tokens // rate
    kernel_entries = cache.kernel_block_size or block_entries
    if rate > 1 or block_entries % kernel_entries:
        kernel_entries = block_entries
    content = [part.entry_bytes // part.heads for part in parts]
    in_page = cache.packing == KeyValuePacking.PAGE and len(parts) > 1
    if in_page and len(set(content)) > 1:
        raise LayoutError(f"packing: page needs K and V rows of one size, found {content} bytes; use content or region")
    kernels = block_entries // kernel_entries
    layer_first = cache.layout.startswith("L")
    extents = {
        "L": 1 if layer_first else num_layers,
        "H": parts[0].heads,
        "N": kernel_entries,
        "P": len(parts) if in_page else 1,
    }
    extents |= {"B": cache.num_blocks * kernels, "C": content[0] if in_page else sum(content)}
    strides, total = _strides(cache.layout, extents, kernels, cache.page_padding)
    placed = []
    for number, part in enumerate(parts):
        geometry = Geometry(
            block_entries, kernel_entries, strides["B"] * kernels + cache.page_padding, strides["B"], strides["N"],
            _axis_strides(part, strides["H"]),
        )  # fmt: skip
        offset = number * strides["P"] if in_page else sum(content[:number])
        placed.append(_Placed(part, geometry, offset, 0 if layer_first else strides["L"]))
    return placed, [total] * (num_layers if layer_first else 1)


def _strides(order: str, extents: dict[str, int], kernels: int, padding: int) -> tuple[dict[str, int], int]:
    """Byte stride of each letter, innermost letter last; P (K or V in a page) lies just inside the layer and block."""
    strides: dict[str, int] = {}
    reach = 1
    page = max(order.index("L"), order.index("B")) + 1
    for letter in reversed(order[:page] + "P" + order[page:]):
        strides[letter] = reach
        if letter == "B":
            reach = extents["B"] // kernels * (reach * kernels + padding)
        else:
            reach *= extents[letter]
    return strides, reach


def _axis_strides(part: _Held, head_stride: int) -> tuple[int, ...]:
    """The head axis by the layout, all other axes packed in order inside the content."""
    strides: list[int] = []
    reach = part.array.dtype.nbytes
    for axis, extent in zip(reversed(part.array.axes), reversed(part.extents), strict=True):
        strides.append(head_stride if axis.name == "head" else reach)
        reach *= 1 if axis.name == "head" else extent
    return tuple(reversed(strides))


def _state_page(cache: CacheConfig, parts: list[_Held], num_layers: int) -> tuple[list[_Placed], list[int]]:
    """One page per block: the conv sections, then every other tensor, then padding."""
    conv = [part for part in parts if _is_conv(part)]
    others = [part for part in parts if not _is_conv(part)]
    starts = _section_starts(conv, cache.conv_order)
    strides = [_conv_strides(part, conv, cache.conv_order) for part in conv]
    reach = sum(part.entry_bytes for part in conv)
    for part in others:
        item = part.array.dtype.nbytes
        starts.append(-(-reach // item) * item)
        strides.append(_axis_strides_in_order(part))
        reach = starts[-1] + part.entry_bytes
    widest = max(part.array.dtype.nbytes for part in parts)
    page = -(-reach // widest) * widest + cache.page_padding
    placed = [
        _Placed(part, Geometry(1, 1, page, 0, 0, stride), start, 0)
        for part, start, stride in zip([*conv, *others], starts, strides, strict=True)
    ]
    return placed, [page * cache.num_blocks] * num_layers


def _is_conv(part: _Held) -> bool:
    return part.array.axes[-1].name == "tap"


def _section_starts(conv: list[_Held], order: str) -> list[int]:
    """Byte offset of each conv section: channel-major sections follow one another, tap-major lie side by side."""
    sizes = [part.entry_bytes if order == ConvOrder.DS else part.entry_bytes // part.extents[-1] for part in conv]
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _conv_strides(part: _Held, conv: list[_Held], order: str) -> tuple[int, ...]:
    item, taps = part.array.dtype.nbytes, part.extents[-1]
    if order == ConvOrder.DS:
        return (taps * item, item)
    return (item, sum(section.entry_bytes // section.extents[-1] for section in conv))


def _axis_strides_in_order(part: _Held) -> tuple[int, ...]:
    return tuple(prod(part.extents[number + 1 :]) * part.array.dtype.nbytes for number in range(len(part.extents)))


def _shard(rank: _Rank, group: str, placed: _Placed, layers: list[CacheLayer], regions: list[int]) -> Shard:
    places = tuple(
        Place(layer.name, regions[number if len(regions) > 1 else 0], placed.offset + number * placed.layer_stride)
        for number, layer in enumerate(layers)
    )
    array = placed.held.array
    return Shard(
        array, group, placed.held.box, token_share(array, rank.parallel, rank.coordinates), placed.geometry,
        rank.cache.num_blocks, places, rank.cache.speculative_blocks if array.tokens is None else 0,
    )  # fmt: skip


def _check_stated(model: ModelCache, parallel: ParallelConfig) -> None:
    """Stated intervals must be meant for some array; a misspelt axis or a wrong number would go unnoticed."""
    units = {
        (axis.name, axis.units) for layer in model.layers() for array in layer.spec.arrays() for axis in array.axes
    }
    for axis, intervals in parallel.stated.items():
        stated = max(interval.stop for interval in intervals)
        if (axis, stated) not in units:
            split = sorted({f"{name} of {count}" for name, count in units if count})
            raise LayoutError(
                f"stated {axis}: the intervals end at {stated}, but no array is split so; the model has "
                f"{', '.join(split) or 'no axis that is split'}"
            )


def _check_coverage(layout: EngineLayout) -> None:
    """Under dcp the ranks that share a box must hold every share of its tokens between them."""
    shares: dict[tuple[str, str, Box], set[int]] = defaultdict(set)
    for rank in layout.ranks:
        for shard in rank.shards:
            if shard.tokens is not None and shard.tokens.count > 1:
                shares[shard.places[0].layer, shard.array.part, shard.box].add(shard.tokens.index)
    for (layer, part, box), held in shares.items():
        if len(held) < layout.parallel.dcp:
            raise LayoutError(
                f"{layer} {part}: dcp={layout.parallel.dcp}, but only dcp ranks {sorted(held)} hold box "
                f"{', '.join(map(str, box))} at tp={layout.parallel.tp}; "
                "dcp needs that many replicas of every head: raise tp or lower dcp"
            )
