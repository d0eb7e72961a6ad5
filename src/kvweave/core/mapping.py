"""The rank-level view of a transfer: which remote tensor ranks one local rank reads, per cache group.

Nothing here knows a kind of cache. The reads come from a plan between two engines of these sizes, which takes each
array of each layer by its own boxes; the mapping says what they look like from one rank::

    4 KV heads, remote tp 8, local tp 2

    remote   P0 P1   P2 P3   P4 P5   P6 P7        neighbours hold equal boxes: replicas
    head     [0,1)   [1,2)   [2,3)   [3,4)
    local    D0: [0,2)       D1: [2,4)            D0 reads P0 and P2, D1 reads P4 and P6

The names of the results are those of vLLM's function ``compute_tp_mapping``. Where sizes do not divide one another a
single number for all sources may not exist; it is None then, and the plan has the boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm

from kvweave.core.array import CacheArray
from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Box
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.plan import plan_transfer
from kvweave.core.read import Read
from kvweave.core.replicas import choose
from kvweave.core.sharding import box_of
from kvweave.core.spec import LayerSpec, UniformTypeKVCacheSpecs
from kvweave.core.topology import TransferTopology
from kvweave.errors import ConfigurationError

CacheGroup = KVCacheGroup | UniformTypeKVCacheSpecs | LayerSpec
"""One group: a model's group, vLLM's wrapper, or the one spec of all its layers."""

_Sizes = tuple[int, int, int]
"""tp, dcp, interleave."""


@dataclass(frozen=True, slots=True)
class GroupMapping:
    """One group's part of the mapping. ``attention_slots`` and ``offset_factor`` as in ``TPMapping``."""

    source_ranks: tuple[int, ...]
    attention_slots: Mapping[int, int] | None
    offset_factor: int | None


@dataclass(frozen=True, slots=True)
class TPMapping:
    """Which remote ranks one local rank reads, and how their data lies in its own.

    ``rank_to_attention_slot`` gives for each of ``all_source_ranks`` the position of its heads among the pieces that
    this rank's heads are read in (0 where all ranks hold everything). ``rank_offset_factor`` is how many such pieces
    lie before the wanted one inside a source's own heads. ``local_consumers`` is how many local ranks read from each of
    the sources. These three are None where no single answer serves all groups or sources; ``groups`` has each group's.
    """

    groups: tuple[GroupMapping, ...]
    rank_to_attention_slot: Mapping[int, int] | None
    rank_offset_factor: int | None
    local_consumers: int | None

    @property
    def source_ranks_per_group(self) -> tuple[tuple[int, ...], ...]:
        """The remote tensor ranks that this rank reads, ascending, per group."""
        return tuple(group.source_ranks for group in self.groups)

    @property
    def all_source_ranks(self) -> tuple[int, ...]:
        """Every remote tensor rank that this rank reads something from, ascending."""
        return tuple(sorted({rank for group in self.groups for rank in group.source_ranks}))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A read of the plan with the one source that serves it, and that source's own box."""

    read: Read
    source: int
    source_box: Box

    @property
    def splits_attention(self) -> bool:
        """Whether its array has tokens and an axis that tensor ranks share out."""
        return self.read.array.tokens is not None and any(axis.units for axis in self.read.array.axes)

    @property
    def offset(self) -> int | None:
        """How many pieces like this one lie before it in its source's box; None where that is no whole number."""
        total = 0
        for inner, outer in zip(self.read.box, self.source_box, strict=True):
            pieces, rest = divmod(inner.start - outer.start, len(inner))
            if rest:
                return None
            total += pieces
        return total


def compute_tp_mapping(
    topology: TransferTopology,
    remote_tp_size: int,
    groups: Sequence[CacheGroup],
    remote_dcp_size: int = 1,
    remote_interleave: int | None = None,
) -> TPMapping:
    """The mapping of ``topology``'s rank onto a remote engine of ``remote_tp_size`` tensor ranks.

    Of several equal remote ranks the one that follows from the tp ratio is read: ``tp_rank * remote_tp_size //
    tp_size`` where all ranks are equal (vLLM's rule). ``remote_interleave`` is the topology's unless stated.

    Raises ``LayoutError`` for a split that no engine could build, ``ConfigurationError`` without groups.

    >>> from kvweave.core.spec import FullAttentionSpec
    >>> topology = TransferTopology(engine_id="decode", tp_rank=0, tp_size=2, block_size=16, total_num_kv_heads=4)
    >>> mapping = compute_tp_mapping(topology, remote_tp_size=8, groups=[FullAttentionSpec(4, head_size=64)])
    >>> mapping.all_source_ranks, mapping.rank_to_attention_slot
    ((0, 2), {0: 0, 2: 1})
    """
    if not groups:
        raise ConfigurationError("groups: none given; give at least one group or spec")
    distinct = (_one_layer_per_spec(str(number), group) for number, group in enumerate(groups))
    model = ModelCache("mapping", 1, tuple(distinct))
    interleave = topology.interleave if remote_interleave is None else remote_interleave
    local = (topology.tp_size, topology.dcp_size, topology.interleave)
    reads = _plan(model, (remote_tp_size, remote_dcp_size, interleave), local)
    own = reads[topology.tp_rank]
    sources = _sources(own)
    consumers = {sum(source in _sources(others) for others in reads) for source in sources}
    slots, offset = _attention_view(own, sources)
    return TPMapping(
        groups=tuple(_map_group(group.name, own, sources) for group in model.groups),
        rank_to_attention_slot=slots,
        rank_offset_factor=offset,
        local_consumers=consumers.pop() if len(consumers) == 1 else None,
    )


@lru_cache(maxsize=64)
def _plan(model: ModelCache, remote: _Sizes, local: _Sizes) -> tuple[tuple[_Chosen, ...], ...]:
    """The reads of every local rank, planned with the smallest memory there is; kept, as all ranks ask the same."""
    shapes = [ParallelConfig(tp=tp, dcp=dcp, interleave=interleave) for tp, dcp, interleave in (remote, local)]
    cache = CacheConfig(block_size=lcm(*(shape.interleave for shape in shapes)), num_blocks=1)
    prefill, decode = (EngineLayout.build(model, shape, cache) for shape in shapes)
    plan = plan_transfer(prefill, decode)
    return tuple(tuple(_choose(read, prefill.parallel) for read in plan.of(rank)) for rank in decode.ranks)


def _one_layer_per_spec(name: str, group: CacheGroup) -> KVCacheGroup:
    match group:
        case KVCacheGroup():
            specs: list[LayerSpec] = [layer.spec for layer in group.layers]
        case UniformTypeKVCacheSpecs():
            specs = list(group.kv_cache_specs.values())
        case _:
            specs = [group]
    if strangers := [spec for spec in specs if not isinstance(spec, LayerSpec)]:
        raise ConfigurationError(f"group {name}: {strangers[0]!r} is no spec of a layer; give the group's specs")
    distinct = enumerate(dict.fromkeys(specs))
    return KVCacheGroup(name, tuple(CacheLayer(f"{name}.{number}", 0, spec) for number, spec in distinct))


def _choose(read: Read, remote: ParallelConfig) -> _Chosen:
    source = choose(read).coordinates
    return _Chosen(read, source.tp, box_of(read.array, remote, source))


def _map_group(name: str, reads: Sequence[_Chosen], sources: Sequence[int]) -> GroupMapping:
    own = [chosen for chosen in reads if chosen.read.target.group == name]
    return GroupMapping(_sources(own), *_attention_view(own, sources))


def _sources(reads: Sequence[_Chosen]) -> tuple[int, ...]:
    return tuple(sorted({chosen.source for chosen in reads}))


def _attention_view(reads: Sequence[_Chosen], sources: Sequence[int]) -> tuple[dict[int, int] | None, int | None]:
    """The slots and the offset that all split attention arrays share; 0 without any, None where they differ."""
    holders: dict[CacheArray, dict[Box, set[int]]] = defaultdict(lambda: defaultdict(set))
    offsets: set[int | None] = set()
    for chosen in reads:
        if chosen.splits_attention:
            holders[chosen.read.array][chosen.read.box] |= {end.coordinates.tp for end in chosen.read.sources}
            offsets.add(chosen.offset)
    if not holders:
        return dict.fromkeys(sources, 0), 0
    first, *others = [_slots(sorted(pieces.items()), sources) for pieces in holders.values()]
    return first if all(slots == first for slots in others) else None, offsets.pop() if len(offsets) == 1 else None


def _slots(pieces: Sequence[tuple[Box, set[int]]], sources: Sequence[int]) -> dict[int, int]:
    """For each source the first of the pieces that it holds; 0 if it holds none."""
    return {
        source: next((number for number, (_, ranks) in enumerate(pieces) if source in ranks), 0) for source in sources
    }
