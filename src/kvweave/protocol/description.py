"""An engine's layout as compact bytes, and back with every number checked.

What many ranks share is written once: arrays, geometries, and the tuples of places. A shard is then a few numbers that
point into these tables; regions alone are written rank by rank. Nothing in it grows with the number of blocks::

    arrays      [part, axes, dtype, tokens] ...          geometries  [block_entries, ..., axis strides] ...
    layers      [name, index, group, spec] ...           placements  [layer, region, offset, layer, ...] ...
    ranks       [regions, shards: [array, group, box, share, geometry, num_blocks, placement, scratch] ...] ...

Reading it rebuilds the frozen values of the core, which check themselves, so a peer cannot describe what no engine
could have; whatever is wrong is a ``RemoteProtocolError``.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from kvweave.core.array import Axis, CacheArray, ChunkReach, DType, FullReach, Reach, TokenAxis, WindowReach
from kvweave.core.cache_config import MemoryKind
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout, Geometry, Place, RankLayout, Region, Shard
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import MOST_RANKS, ParallelConfig
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    StatedArraysSpec,
)
from kvweave.core.tokens import TokenShare
from kvweave.errors import ConfigurationError, LayoutError, RemoteProtocolError

MOST_SHARE_PERIOD = 2**16
"""Entries after which dcp's deal of tokens repeats: bounds the work that a peer's numbers can cause."""
MOST_DESCRIPTION_BYTES = 16 << 20
MOST_LAYERS = 4096
MOST_PLACES = 2**20
"""Places of all ranks together, and regions likewise: 4,096 ranks of 256 layers. A few bytes can name many places."""
MOST_ARRAYS = 256
"""Arrays of one layer."""

_SPECS: dict[str, type[LayerSpec]] = {
    kind.__name__: kind
    for kind in (
        FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MLAAttentionSpec, MambaSpec,
        CircularBufferSpec,
    )
}  # fmt: skip

_Name = Annotated[str, Meta(min_length=1, max_length=500)]
_Short = Annotated[int, Meta(ge=0, lt=2**31)]
_Long = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Few = Meta(max_length=64)
_Many = Meta(max_length=2**16)
_Layers = Meta(max_length=MOST_LAYERS)


class _Wire(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    pass


class _Array(_Wire, frozen=True):
    part: _Name
    axes: Annotated[tuple[tuple[_Name, _Short, _Short], ...], _Few]
    dtype: tuple[_Name, _Short]
    tokens: tuple[_Short, _Name, _Short, bool] | None


class _Layer(_Wire, frozen=True):
    name: _Name
    index: _Short
    group: _Short
    spec: _Short


class _Geometry(_Wire, frozen=True):
    block_entries: _Long
    kernel_block_entries: _Long
    block_stride: _Long
    kernel_stride: _Long
    entry_stride: _Long
    axis_strides: Annotated[tuple[_Long, ...], _Few]


class _Shard(_Wire, frozen=True):
    array: _Short
    group: _Short
    box: Annotated[tuple[_Long, ...], _Few]
    share: tuple[_Short, _Short, _Short] | None
    geometry: _Short
    num_blocks: _Long
    placement: _Short
    scratch_blocks: _Short


class _Rank(_Wire, frozen=True):
    regions: Annotated[tuple[tuple[int, _Long, MemoryKind, _Short], ...], _Many]
    shards: Annotated[tuple[_Shard, ...], _Many]


class _Engine(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=500)]
    fingerprint: Annotated[str, Meta(max_length=500)]
    num_layers: _Short
    parallel: dict[_Name, Any]
    groups: Annotated[tuple[_Name, ...], Meta(max_length=1000)]
    specs: Annotated[tuple[tuple[_Name, dict[_Name, Any]], ...], _Many]
    layers: Annotated[tuple[_Layer, ...], _Layers]
    arrays: Annotated[tuple[_Array, ...], _Many]
    geometries: Annotated[tuple[_Geometry, ...], _Many]
    placements: Annotated[tuple[Annotated[tuple[_Long, ...], _Many], ...], _Many]
    ranks: Annotated[tuple[_Rank, ...], Meta(min_length=1, max_length=MOST_RANKS)]


_DECODER = msgspec.msgpack.Decoder(_Engine)

Shared = TypeVar("Shared", bound=Hashable)


class _Pool(Generic[Shared]):
    """Numbers equal values once, in order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[Shared, int] = {}

    def number(self, value: Shared) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def encode_layout(layout: EngineLayout) -> bytes:
    """The description of an engine; its ``CacheConfig`` stays at home, the strides say all of it."""
    return _Writer(layout).encode()


def decode_layout(data: bytes) -> EngineLayout:
    """The engine that a peer described; raises ``RemoteProtocolError`` when no engine could look like that."""
    if len(data) > MOST_DESCRIPTION_BYTES:
        raise RemoteProtocolError(f"description: {len(data)} bytes, at most {MOST_DESCRIPTION_BYTES} are taken")
    try:
        return _read_engine(_DECODER.decode(data))
    except (msgspec.MsgspecError, LayoutError, ConfigurationError, LookupError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"description: {error}") from error


class _Writer:
    def __init__(self, layout: EngineLayout) -> None:
        self._layout = layout
        self._groups: _Pool[str] = _Pool()
        self._specs: _Pool[LayerSpec] = _Pool()
        self._arrays: _Pool[CacheArray] = _Pool()
        self._geometries: _Pool[Geometry] = _Pool()
        self._placements: _Pool[tuple[Place, ...]] = _Pool()

    def encode(self) -> bytes:
        model = self._layout.model
        layers = tuple(
            _Layer(layer.name, layer.index, self._groups.number(group.name), self._specs.number(layer.spec))
            for group in model.groups
            for layer in group.layers
        )
        names: _Pool[str] = _Pool()
        for layer in layers:
            names.number(layer.name)
        ranks = tuple(self._rank(rank) for rank in self._layout.ranks)
        placements = tuple(_flat(names, places) for places in self._placements.numbers)
        engine = _Engine(
            model.name, model.fingerprint, model.num_layers, _parallel(self._layout.parallel),
            tuple(self._groups.numbers),
            tuple((type(spec).__name__, _fields(spec)) for spec in self._specs.numbers), layers,
            tuple(_array(array) for array in self._arrays.numbers),
            tuple(_geometry(geometry) for geometry in self._geometries.numbers), placements, ranks,
        )  # fmt: skip
        return msgspec.msgpack.encode(engine)

    def _rank(self, rank: RankLayout) -> _Rank:
        regions = tuple((region.address, region.nbytes, region.memory, region.device) for region in rank.regions)
        return _Rank(regions, tuple(self._shard(shard) for shard in rank.shards))

    def _shard(self, shard: Shard) -> _Shard:
        share = shard.tokens
        return _Shard(
            self._arrays.number(shard.array), self._groups.number(shard.group),
            tuple(edge for interval in shard.box for edge in (interval.start, interval.stop)),
            None if share is None else (share.count, share.index, share.interleave),
            self._geometries.number(shard.geometry), shard.num_blocks, self._placements.number(shard.places),
            shard.scratch_blocks,
        )  # fmt: skip


def _fields(spec: LayerSpec) -> dict[str, Any]:
    if isinstance(spec, StatedArraysSpec):
        return {"stated": [msgspec.to_builtins(_array(array)) for array in spec.stated]}
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    return fields


def _flat(names: _Pool[str], places: tuple[Place, ...]) -> tuple[int, ...]:
    return tuple(number for place in places for number in (names.numbers[place.layer], place.region, place.offset))


def _parallel(parallel: ParallelConfig) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(parallel)
    return fields


def _array(array: CacheArray) -> _Array:
    tokens = array.tokens
    return _Array(
        array.part,
        tuple((axis.name, axis.size, axis.units) for axis in array.axes),
        (array.dtype.name, array.dtype.nbytes),
        None if tokens is None else (tokens.tokens_per_entry, *_reach(tokens.reach), tokens.dcp_sharded),
    )


def _reach(reach: Reach) -> tuple[str, int]:
    match reach:
        case WindowReach(tokens):
            return "window", tokens
        case ChunkReach(tokens):
            return "chunk", tokens
        case _:
            return "full", 0


def _geometry(geometry: Geometry) -> _Geometry:
    return _Geometry(
        geometry.block_entries, geometry.kernel_block_entries, geometry.block_stride, geometry.kernel_stride,
        geometry.entry_stride, geometry.axis_strides,
    )  # fmt: skip


def _read_engine(wire: _Engine) -> EngineLayout:
    _check_numbers(wire)
    parallel = msgspec.convert(wire.parallel, ParallelConfig)
    if parallel.ranks_per_engine != len(wire.ranks):
        raise RemoteProtocolError(
            f"description: {len(wire.ranks)} ranks, but pp={parallel.pp}, pcp={parallel.pcp}, tp={parallel.tp} have "
            f"{parallel.ranks_per_engine}"
        )
    specs = [_read_spec(kind, fields) for kind, fields in wire.specs]
    layers: dict[str, list[CacheLayer]] = {}
    for layer in wire.layers:
        layers.setdefault(wire.groups[layer.group], []).append(CacheLayer(layer.name, layer.index, specs[layer.spec]))
    groups = tuple(KVCacheGroup(name, tuple(members)) for name, members in layers.items())
    model = ModelCache(wire.name, wire.num_layers, groups, wire.fingerprint)
    shards = _ShardReader(wire)
    ranks = tuple(
        RankLayout(coordinates, _regions(rank), tuple(shards.read(shard) for shard in rank.shards))
        for coordinates, rank in zip(parallel.ranks(), wire.ranks, strict=True)
    )
    return EngineLayout(model, parallel, ranks)


def _check_numbers(wire: _Engine) -> None:
    """Refuses what a few bytes may name many times, before any of it is built."""
    places = [len(numbers) // 3 for numbers in wire.placements]
    placed = sum(places[shard.placement] for rank in wire.ranks for shard in rank.shards)
    regions = sum(len(rank.regions) for rank in wire.ranks)
    if max(placed, regions, sum(places)) > MOST_PLACES:
        raise RemoteProtocolError(
            f"description: {placed} places in {regions} regions over all ranks; at most {MOST_PLACES} are taken"
        )


def _regions(rank: _Rank) -> tuple[Region, ...]:
    return tuple(Region(address, nbytes, memory, device) for address, nbytes, memory, device in rank.regions)


class _ShardReader:
    """Rebuilds shards; equal parts become one object, as they were on the other side."""

    def __init__(self, wire: _Engine) -> None:
        self._groups = wire.groups
        self._arrays = [_read_array(array) for array in wire.arrays]
        self._geometries = [Geometry(*msgspec.structs.astuple(geometry)) for geometry in wire.geometries]
        self._placements = [_places(wire, numbers) for numbers in wire.placements]

    def read(self, wire: _Shard) -> Shard:
        if not self._placements[wire.placement]:
            raise RemoteProtocolError("description: a shard has no layer")
        box = tuple(Interval(start, stop) for start, stop in list(pairwise(wire.box))[::2])
        share = None if wire.share is None else TokenShare(*wire.share)
        if share is not None and share.count * share.interleave > MOST_SHARE_PERIOD:
            raise RemoteProtocolError(
                f"description: dcp {share.count} with interleave {share.interleave}; "
                f"their product is at most {MOST_SHARE_PERIOD}"
            )
        return Shard(
            self._arrays[wire.array], self._groups[wire.group], box, share, self._geometries[wire.geometry],
            wire.num_blocks, self._placements[wire.placement], wire.scratch_blocks,
        )  # fmt: skip


def _places(wire: _Engine, numbers: tuple[int, ...]) -> tuple[Place, ...]:
    if len(numbers) % 3:
        raise RemoteProtocolError(f"description: a placement of {len(numbers)} numbers; it has three per layer")
    triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return tuple(Place(wire.layers[layer].name, region, offset) for layer, region, offset in triples)


def _read_spec(kind: str, fields: dict[str, Any]) -> LayerSpec:
    if kind == StatedArraysSpec.__name__:
        arrays = msgspec.convert(fields["stated"], Annotated[tuple[_Array, ...], Meta(max_length=MOST_ARRAYS)])
        return StatedArraysSpec(tuple(_read_array(array) for array in arrays))
    return msgspec.convert(fields, _SPECS[kind])


def _read_array(wire: _Array) -> CacheArray:
    axes = tuple(Axis(name, size, units) for name, size, units in wire.axes)
    return CacheArray(wire.part, axes, DType(*wire.dtype), None if wire.tokens is None else _read_tokens(*wire.tokens))


def _read_tokens(tokens_per_entry: int, kind: str, reach: int, dcp_sharded: bool) -> TokenAxis:
    kinds: dict[str, Reach] = {"full": FullReach(), "window": WindowReach(reach), "chunk": ChunkReach(reach)}
    return TokenAxis(tokens_per_entry, kinds[kind], dcp_sharded)
