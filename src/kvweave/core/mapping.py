"""The rank-level view of a transfer: which remote tensor ranks one local rank reads, per cache group.

Nothing here knows a kind of cache. Each array of each layer is taken by its own boxes: the local rank's box is cut
where the remote boxes begin and end, and each piece is read from one of the remote ranks that hold all of it::

    4 KV heads, remote tp 8, local tp 2

    remote   P0 P1   P2 P3   P4 P5   P6 P7        neighbours hold equal boxes: replicas
    head     [0,1)   [1,2)   [2,3)   [3,4)
    local    D0: [0,2)       D1: [2,4)            D0 reads P0 and P2, D1 reads P4 and P6

The names of the results are those of vLLM's function ``compute_tp_mapping``. Where sizes do not divide one another a
single number for all sources may not exist; it is None then, and the plan has the boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kvweave.core.array import CacheArray
from kvweave.core.interval import Box, box_contains, box_intersection
from kvweave.core.model import KVCacheGroup
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.sharding import box_of, token_share
from kvweave.core.spec import LayerSpec, UniformTypeKVCacheSpecs
from kvweave.core.tokens import TokenShare, shared_runs
from kvweave.core.topology import TransferTopology
from kvweave.errors import ConfigurationError, PlanError

CacheGroup = KVCacheGroup | UniformTypeKVCacheSpecs | LayerSpec
"""One group: a model's group, vLLM's wrapper, or the one spec of all its layers."""


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
class _Holding:
    """A box of an array, and the share of its tokens (None for a state)."""

    box: Box
    tokens: TokenShare | None

    def meets(self, other: _Holding) -> bool:
        return box_intersection(self.box, other.box) is not None and _tokens_meet(self.tokens, other.tokens)

    def contains(self, piece: _Holding) -> bool:
        return self.tokens == piece.tokens and box_contains(self.box, piece.box)


@dataclass(frozen=True, slots=True)
class _Read:
    """A piece of the local box, the remote rank it is read from, and that rank's own box."""

    source: int
    piece: Box
    source_box: Box


@dataclass(frozen=True, slots=True)
class _ArrayReads:
    """How one array is read by every local rank."""

    array: CacheArray
    holdings: tuple[_Holding, ...]
    reads: tuple[tuple[_Read, ...], ...]

    @property
    def splits_attention(self) -> bool:
        """Whether it has tokens and an axis that tensor ranks share out."""
        return self.array.tokens is not None and any(axis.units for axis in self.array.axes)

    def slots(self, rank: int, sources: Sequence[int]) -> dict[int, int]:
        """For each source: the first of the local rank's pieces that it holds; 0 if it holds none."""
        pieces = sorted({read.piece for read in self.reads[rank]})
        held = {source: [p for p in pieces if box_contains(self.holdings[source].box, p)] for source in sources}
        return {source: pieces.index(boxes[0]) if boxes else 0 for source, boxes in held.items()}

    def offsets(self, rank: int) -> set[int | None]:
        """How many pieces lie before each piece in its source's box; None where that is no whole number."""
        return {_offset(read) for read in self.reads[rank]}


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

    Raises ``LayoutError`` for a split that no engine could build, ``PlanError`` for a piece that no remote rank holds,
    ``ConfigurationError`` without groups.

    >>> from kvweave.core.spec import FullAttentionSpec
    >>> topology = TransferTopology(engine_id="decode", tp_rank=0, tp_size=2, block_size=16, total_num_kv_heads=4)
    >>> mapping = compute_tp_mapping(topology, remote_tp_size=8, groups=[FullAttentionSpec(4, head_size=64)])
    >>> mapping.all_source_ranks, mapping.rank_to_attention_slot
    ((0, 2), {0: 0, 2: 1})
    """
    if not groups:
        raise ConfigurationError("groups: none given; give at least one group or spec")
    interleave = topology.interleave if remote_interleave is None else remote_interleave
    remote = ParallelConfig(tp=remote_tp_size, dcp=remote_dcp_size, interleave=interleave)
    local = topology.parallel()
    per_group = [[_read_array(array, local, remote) for array in _arrays(group)] for group in groups]
    every = [array for group in per_group for array in group]
    sources = _sources(every, topology.tp_rank)
    consumers = {sum(source in _sources(every, rank) for rank in range(local.tp)) for source in sources}
    slots, offset = _attention_view(every, topology.tp_rank, sources)
    return TPMapping(
        groups=tuple(_map_group(group, topology.tp_rank, sources) for group in per_group),
        rank_to_attention_slot=slots,
        rank_offset_factor=offset,
        local_consumers=consumers.pop() if len(consumers) == 1 else None,
    )


def _arrays(group: CacheGroup) -> tuple[CacheArray, ...]:
    """The distinct arrays of a group, layer by layer."""
    match group:
        case KVCacheGroup():
            specs: list[LayerSpec] = [layer.spec for layer in group.layers]
        case UniformTypeKVCacheSpecs():
            specs = list(group.kv_cache_specs.values())
        case _:
            specs = [group]
    return tuple(dict.fromkeys(array for spec in specs for array in spec.arrays()))


def _map_group(arrays: Sequence[_ArrayReads], rank: int, all_sources: Sequence[int]) -> GroupMapping:
    slots, offset = _attention_view(arrays, rank, all_sources)
    return GroupMapping(_sources(arrays, rank), slots, offset)


def _sources(arrays: Sequence[_ArrayReads], rank: int) -> tuple[int, ...]:
    return tuple(sorted({read.source for array in arrays for read in array.reads[rank]}))


def _attention_view(
    arrays: Sequence[_ArrayReads], rank: int, sources: Sequence[int]
) -> tuple[dict[int, int] | None, int | None]:
    """The slots and the offset that all split attention arrays share; 0 without any, None where they differ."""
    split = [array for array in arrays if array.splits_attention]
    if not split:
        return dict.fromkeys(sources, 0), 0
    first, *others = [array.slots(rank, sources) for array in split]
    offsets = set().union(*(array.offsets(rank) for array in split))
    return first if all(slots == first for slots in others) else None, offsets.pop() if len(offsets) == 1 else None


def _read_array(array: CacheArray, local: ParallelConfig, remote: ParallelConfig) -> _ArrayReads:
    targets, sources = _holdings(array, local), _holdings(array, remote)
    reads = tuple(tuple(_reads(array.part, rank, targets, sources)) for rank in range(local.tp))
    return _ArrayReads(array, sources, reads)


def _holdings(array: CacheArray, parallel: ParallelConfig) -> tuple[_Holding, ...]:
    ranks = [RankCoordinates(tp=tp_rank) for tp_rank in range(parallel.tp)]
    return tuple(_Holding(box_of(array, parallel, rank), token_share(array, parallel, rank)) for rank in ranks)


def _reads(part: str, rank: int, targets: Sequence[_Holding], sources: Sequence[_Holding]) -> Iterator[_Read]:
    """One read per piece: of the n remote ranks that hold it, the one at ordinal * n // (local ranks that want it)."""
    for piece in _pieces(targets[rank], sources):
        replicas = [source for source, holding in enumerate(sources) if holding.contains(piece)]
        if not replicas:
            raise PlanError(
                f"{part}: no remote rank holds {_box_text(piece.box)}; state remote intervals that cover it"
            )
        sharing = [target for target, holding in enumerate(targets) if holding.meets(piece)]
        source = replicas[sharing.index(rank) * len(replicas) // len(sharing)]
        yield _Read(source, piece.box, sources[source].box)


def _pieces(target: _Holding, sources: Sequence[_Holding]) -> Iterator[_Holding]:
    """The target's box cut at every remote edge, once for each remote token share that it meets."""
    cuts = [
        interval.cut(source.box[axis] for source in sources if box_intersection(source.box, target.box) is not None)
        for axis, interval in enumerate(target.box)
    ]
    for tokens in dict.fromkeys(source.tokens for source in sources):
        if _tokens_meet(target.tokens, tokens):
            yield from (_Holding(box, tokens) for box in product(*cuts))


def _tokens_meet(one: TokenShare | None, other: TokenShare | None) -> bool:
    return one is None or other is None or bool(shared_runs(one, other)[0])


def _offset(read: _Read) -> int | None:
    total = 0
    for inner, outer in zip(read.piece, read.source_box, strict=True):
        pieces, rest = divmod(inner.start - outer.start, len(inner))
        if rest:
            return None
        total += pieces
    return total


def _box_text(box: Box) -> str:
    return " x ".join(str(interval) for interval in box)
