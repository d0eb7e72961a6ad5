"""Where an engine keeps its boxes: regions, and placement by strides.

A rank keeps each of its boxes in a region. For a logical block id L, an entry e inside that block and an element of
the box, the byte lies at::

    region.address + place.offset + L * block_stride
                   + (e // kernel_block_entries) * kernel_stride + (e % kernel_block_entries) * entry_stride
                   + sum over axes of local index * axis stride

Every memory layout is such strides: head before or after token, K and V packed in one row or apart, all layers in one
block row, padded pages, kernel blocks smaller than logical ones, both orders of a conv state. Layers of equal geometry
share one ``Shard`` and differ in their ``Place`` alone, so a description does not grow with the number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvweave.core.array import CacheArray
from kvweave.core.cache_config import CacheConfig, MemoryKind
from kvweave.core.interval import Box
from kvweave.core.model import ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.tokens import TokenShare
from kvweave.core.whole import LARGEST, require_whole
from kvweave.errors import LayoutError

ADDRESS_LIMIT = 2**64
LAST_DEVICE = 2**32 - 1
_GEOMETRY_SIZES = ("block_entries", "kernel_block_entries", "block_stride", "kernel_stride", "entry_stride")


@dataclass(frozen=True, slots=True)
class Region:
    """One registered piece of memory: ``nbytes`` from ``address``, of one kind on one device."""

    address: int
    nbytes: int
    memory: MemoryKind = MemoryKind.DRAM
    device: int = 0

    def __post_init__(self) -> None:
        sizes = {"address": self.address, "nbytes": self.nbytes, "device": self.device}
        require_whole("region", None, ADDRESS_LIMIT, LayoutError, **sizes)
        if not 0 <= self.device <= LAST_DEVICE or self.nbytes > LARGEST:
            require_whole("region", most=LAST_DEVICE, error=LayoutError, device=self.device)
            require_whole("region", error=LayoutError, nbytes=self.nbytes)
        if self.nbytes < 1 or not 0 <= self.address <= ADDRESS_LIMIT - self.nbytes:
            raise LayoutError(
                f"region: address {self.address:#x} with {self.nbytes} bytes does not lie in a 64-bit address space; "
                "state an address of at least 0 and at least one byte"
            )


@dataclass(frozen=True, slots=True)
class Geometry:
    """Strides by which one box lies in a block, in bytes. ``block_entries`` is 1 for a state."""

    block_entries: int
    kernel_block_entries: int
    block_stride: int
    kernel_stride: int
    entry_stride: int
    axis_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in _GEOMETRY_SIZES}
        sizes |= {f"axis stride {number}": stride for number, stride in enumerate(self.axis_strides)}
        require_whole("geometry", None, error=LayoutError, **sizes)
        if self.block_entries < 1 or self.kernel_block_entries < 1 or self.block_entries % self.kernel_block_entries:
            raise LayoutError(
                f"geometry: kernel block of {self.kernel_block_entries} entries in a block of {self.block_entries}; "
                "it must divide it"
            )
        if min((self.block_stride, self.kernel_stride, self.entry_stride, *self.axis_strides)) < 0:
            raise LayoutError("geometry: a stride is negative; describe the memory from its lowest address")

    def dimensions(self, extents: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(extent, stride) of everything inside one logical block, widest stride first."""
        kernels = self.block_entries // self.kernel_block_entries
        inside = [(kernels, self.kernel_stride), (self.kernel_block_entries, self.entry_stride)]
        inside += zip(extents, self.axis_strides, strict=True)
        return tuple(sorted((d for d in inside if d[0] > 1), key=lambda dimension: -dimension[1]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where one layer's box begins: the rank's region by number, and a byte offset in it."""

    layer: str
    region: int
    offset: int

    def __post_init__(self) -> None:
        sizes = {"region": self.region, "offset": self.offset}
        require_whole(f"place of {self.layer}", None, error=LayoutError, **sizes)


@dataclass(frozen=True)
class Shard:
    """One rank's box of one kind of array, for all layers that keep it in the same geometry.

    ``group`` names the block table; ids are below ``num_blocks``. ``scratch_blocks`` is how many blocks at the end of a
    state's table are scratch.
    """

    array: CacheArray
    group: str
    box: Box
    tokens: TokenShare | None
    geometry: Geometry
    num_blocks: int
    places: tuple[Place, ...]
    scratch_blocks: int = 0

    def __post_init__(self) -> None:
        if not self.places:
            raise LayoutError(f"shard {self.array.part}: it lies nowhere; place at least one layer, or leave it out")
        if len(self.box) != len(self.array.axes) or len(self.geometry.axis_strides) != len(self.array.axes):
            raise LayoutError(
                f"{self.name}: {len(self.array.axes)} axes, but a box of {len(self.box)} and "
                f"{len(self.geometry.axis_strides)} strides; state one of each per axis"
            )
        for axis, interval in zip(self.array.axes, self.box, strict=True):
            if len(interval) == 0 or interval.stop > axis.size:
                raise LayoutError(f"{self.name}, axis {axis.name}: box {interval} is not inside [0, {axis.size})")
        require_whole(
            self.name, None, error=LayoutError, num_blocks=self.num_blocks, scratch_blocks=self.scratch_blocks
        )
        if self.num_blocks < 1 or self.scratch_blocks < 0:
            raise LayoutError(f"{self.name}: num_blocks {self.num_blocks}, scratch_blocks {self.scratch_blocks}")
        if (self.tokens is None) != (self.array.tokens is None):
            raise LayoutError(f"{self.name}: a token share belongs to an array with a token axis, and only there")
        if self.tokens is not None and self.tokens.count > 1 and self.geometry.block_entries % self.tokens.interleave:
            raise LayoutError(
                f"{self.name}: interleave {self.tokens.interleave} does not divide the "
                f"{self.geometry.block_entries} entries of a block; choose an interleave that divides the block size"
            )
        self._check_strides()

    @property
    def name(self) -> str:
        """For messages: the first layer and the part."""
        return f"{self.places[0].layer} {self.array.part}"

    @property
    def extents(self) -> tuple[int, ...]:
        """The box's size per axis."""
        return tuple(len(interval) for interval in self.box)

    @property
    def block_bytes(self) -> int:
        """Bytes from the first to the last byte that one logical block touches."""
        inner = self.geometry.dimensions(self.extents)
        return self.array.dtype.nbytes + sum((extent - 1) * stride for extent, stride in inner)

    @cached_property
    def extent_bytes(self) -> int:
        """Bytes from a place's offset to the end of its last block."""
        return (self.num_blocks - 1) * self.geometry.block_stride + self.block_bytes

    @cached_property
    def layers(self) -> frozenset[str]:
        """The names of the layers."""
        return frozenset(place.layer for place in self.places)

    def _check_strides(self) -> None:
        dimensions = [*self.geometry.dimensions(self.extents)]
        if self.num_blocks > 1:
            dimensions.append((self.num_blocks, self.geometry.block_stride))
        reached = self.array.dtype.nbytes
        for extent, stride in sorted(dimensions, key=lambda dimension: dimension[1]):
            if stride < reached:
                raise LayoutError(
                    f"{self.name}: a stride of {stride} bytes over {extent} steps falls inside the {reached} bytes "
                    "below it, so elements would overlap; state strides that keep them apart"
                )
            reached += (extent - 1) * stride


@dataclass(frozen=True, slots=True)
class RankLayout:
    """One rank's memory: its regions and what lies in them."""

    coordinates: RankCoordinates
    regions: tuple[Region, ...]
    shards: tuple[Shard, ...]

    def __repr__(self) -> str:
        return f"<rank {self.coordinates}: {len(self.shards)} shards in {len(self.regions)} regions>"

    def __post_init__(self) -> None:
        self._check_regions()
        held: set[tuple[str, str]] = set()
        for shard in self.shards:
            for place in shard.places:
                self._check_place(shard, place)
                if (place.layer, shard.array.part) in held:
                    raise LayoutError(
                        f"rank {self.coordinates}: {place.layer} {shard.array.part} is placed twice; place it once"
                    )
                held.add((place.layer, shard.array.part))

    def _check_regions(self) -> None:
        ordered = sorted(self.regions, key=lambda region: (region.memory, region.device, region.address))
        for low, high in zip(ordered, ordered[1:], strict=False):
            same = (low.memory, low.device) == (high.memory, high.device)
            if same and low.address + low.nbytes > high.address:
                raise LayoutError(
                    f"rank {self.coordinates}: regions overlap: {low.address:#x} + {low.nbytes} bytes reaches into "
                    f"{high.address:#x}; register each byte in one region"
                )

    def _check_place(self, shard: Shard, place: Place) -> None:
        if not 0 <= place.region < len(self.regions):
            raise LayoutError(
                f"rank {self.coordinates}: {place.layer} {shard.array.part} lies in region {place.region} of "
                f"{len(self.regions)}; name a region that exists"
            )
        room = self.regions[place.region].nbytes
        if place.offset < 0 or place.offset + shard.extent_bytes > room:
            raise LayoutError(
                f"rank {self.coordinates}: {place.layer} {shard.array.part} needs bytes {place.offset} to "
                f"{place.offset + shard.extent_bytes} of a region of {room}; enlarge it or lower num_blocks"
            )


@dataclass(frozen=True)
class EngineLayout:
    """A whole engine: the model it serves, how it is cut, and every rank's memory."""

    model: ModelCache
    parallel: ParallelConfig
    ranks: tuple[RankLayout, ...]
    cache: CacheConfig | None = None

    def __repr__(self) -> str:
        sizes = self.parallel
        return f"<engine for {self.model.name}: pp={sizes.pp}, pcp={sizes.pcp}, tp={sizes.tp}, dcp={sizes.dcp}>"

    def __post_init__(self) -> None:
        expected, stated = list(self.parallel.ranks()), [rank.coordinates for rank in self.ranks]
        if expected != stated:
            raise LayoutError(
                f"engine: ranks {[str(rank) for rank in stated]}, but its parallel sizes give "
                f"{[str(rank) for rank in expected]}; describe each rank once, in that order"
            )
        self._check_arrays()

    @staticmethod
    def build(model: ModelCache, parallel: ParallelConfig, cache: CacheConfig | None = None) -> EngineLayout:
        """The layout of an engine of that shape, at addresses of no real machine.

        Enough to plan, prove and explain; a real engine puts its own addresses in with ``relocated``. Raises
        ``LayoutError`` for sizes that no engine could have.
        """
        from kvweave.core.build import build_layout

        return build_layout(model, parallel, cache or CacheConfig())

    def rank(self, tp: int = 0, pp: int = 0, pcp: int = 0) -> RankLayout:
        """One rank by its coordinates; raises ``LayoutError`` for a rank that the engine does not have."""
        return self.at(RankCoordinates(pp, pcp, tp))

    def at(self, coordinates: RankCoordinates) -> RankLayout:
        """One rank by its coordinates; raises ``LayoutError`` for a rank that the engine does not have."""
        found = self._by_coordinates.get(coordinates)
        if found is None:
            sizes = self.parallel
            raise LayoutError(
                f"rank {coordinates}: the engine has pp={sizes.pp}, pcp={sizes.pcp}, tp={sizes.tp}; name a rank inside"
            )
        return found

    def relocated(self, coordinates: RankCoordinates, regions: Iterable[Region]) -> EngineLayout:
        """This layout with one rank's regions at other addresses; sizes must not shrink."""
        moved = replace(self.at(coordinates), regions=tuple(regions))
        ranks = tuple(moved if rank.coordinates == coordinates else rank for rank in self.ranks)
        return replace(self, ranks=ranks)

    def group_names(self) -> tuple[str, ...]:
        """The names of all block tables, in the order in which the ranks mention them."""
        return tuple(self.num_blocks)

    @cached_property
    def num_blocks(self) -> Mapping[str, int]:
        """How many blocks of each group every rank has."""
        found: dict[str, int] = {}
        for rank in self.ranks:
            for shard in rank.shards:
                found[shard.group] = min(found.get(shard.group, shard.num_blocks), shard.num_blocks)
        return found

    def _check_arrays(self) -> None:
        """Each array is one of the model's, and described alike on all ranks."""
        caches = {(layer.name, a.part): a.axes for layer in self.model.layers() for a in layer.spec.arrays()}
        described: dict[tuple[str, str], CacheArray] = {}
        seen: set[tuple[CacheArray, frozenset[str]]] = set()
        for rank in self.ranks:
            for shard in rank.shards:
                if (shard.array, shard.layers) in seen:
                    continue
                seen.add((shard.array, shard.layers))
                for layer in shard.layers:
                    name = (layer, shard.array.part)
                    if caches.get(name) != shard.array.axes:
                        raise LayoutError(
                            f"rank {rank.coordinates}: {layer} {shard.array.part} over "
                            f"{', '.join(map(str, shard.array.axes))} is no array of model {self.model.name}; "
                            "describe its layers as the model does"
                        )
                    if described.setdefault(name, shard.array) != shard.array:
                        raise LayoutError(
                            f"rank {rank.coordinates}: {layer} {shard.array.part} is {shard.array}, on another rank "
                            f"{described[name]}; describe an array alike on all ranks"
                        )

    @cached_property
    def _by_coordinates(self) -> dict[RankCoordinates, RankLayout]:
        return {rank.coordinates: rank for rank in self.ranks}
