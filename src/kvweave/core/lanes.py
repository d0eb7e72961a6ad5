"""A plan as something to draw: lanes inside ranks, and bands between them. No colours, no coordinates.

Arrays that tensor parallelism splits into equally many units, and that hold tokens alike, share a lane: k and v of all
layers, or every replicated array. A rank's piece of a lane is an interval of units and of decoder layers::

    lane "k, v" of 8 heads      prefill tp0 [0, 2)  ----band [0, 2)---->  decode tp0 [0, 4)

A band is what one rank reads from another of one lane: from a span of the source's piece to a span of the target's,
both between 0 and 1. Layers come first, then units, then shares of the tokens, as if the piece were cut in that order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvweave.core.array import CacheArray
from kvweave.core.interval import Box, Interval
from kvweave.core.layout import EngineLayout, Shard
from kvweave.core.model import ModelCache
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan
from kvweave.core.read import Read, ReadEnd
from kvweave.core.replicas import choose
from kvweave.core.sample import all_shards
from kvweave.core.token_run import TokenRun, read_runs
from kvweave.core.tokens import TokenShare


@dataclass(frozen=True, slots=True, order=True)
class LaneKey:
    """What arrays of one lane share: state or not, how many units (0: replicated), tokens dealt out by dcp or not."""

    state: bool
    units: int
    dealt: bool


KeyOf = Callable[[CacheArray], LaneKey]
"""In which lane an array goes."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One kind of data, by the names of its arrays."""

    key: LaneKey
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank holds of a lane: units (None: all) and decoder layers."""

    lane: LaneKey
    units: Interval | None
    layers: Interval


@dataclass(frozen=True, slots=True)
class Card:
    """A rank and its pieces."""

    rank: RankCoordinates
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A part of a piece, between 0 and 1."""

    start: float
    stop: float

    def within(self, start: float, stop: float) -> Span:
        """The same part of the interval from ``start`` to ``stop``."""
        return Span(start + self.start * (stop - start), start + self.stop * (stop - start))

    def meets(self, other: Span) -> bool:
        """Whether the two have more than an edge in common."""
        return self.start < other.stop and other.start < self.stop

    def union(self, other: Span) -> Span:
        """From the first edge of both to the last."""
        return Span(min(self.start, other.start), max(self.stop, other.stop))


@dataclass(frozen=True, slots=True, order=True)
class Band:
    """What a target reads of a lane from a source; ``replica`` if that source only could serve it."""

    lane: LaneKey
    source: RankCoordinates
    target: RankCoordinates
    source_span: Span
    target_span: Span
    replica: bool


@dataclass(frozen=True, slots=True)
class PlanLanes:
    """Everything a picture of a plan needs."""

    lanes: tuple[Lane, ...]
    sources: tuple[Card, ...]
    targets: tuple[Card, ...]
    bands: tuple[Band, ...]


def plan_lanes(plan: TransferPlan) -> PlanLanes:
    """The lanes of a plan, for a request of salt 0."""
    key_of = _keys_with_dcp(plan) if max(plan.prefill.parallel.dcp, plan.decode.parallel.dcp) > 1 else _keys_without_dcp
    sources = _cards(plan.prefill, key_of)
    targets = tuple(card for card in _cards(plan.decode, key_of) if card.rank in plan.reads)
    weaver = _Weaver(plan.prefill.model, key_of, sources, targets)
    bands = {band for target, reads in plan.reads.items() for read in reads for band in weaver.bands(target, read)}
    return PlanLanes(_lanes(plan.decode.model, key_of), sources, targets, tuple(_merged(bands)))


def _keys_without_dcp(array: CacheArray) -> LaneKey:
    return LaneKey(array.tokens is None, max((axis.units for axis in array.axes), default=0), dealt=False)


def _keys_with_dcp(plan: TransferPlan) -> KeyOf:
    """Tells arrays whose tokens either engine deals out from those that every rank has all tokens of."""
    arrays = {shard.array for layout in (plan.prefill, plan.decode) for _, shard in all_shards(layout)}
    dealt = {_kind(array) for array in arrays if array.tokens is not None and array.tokens.dcp_sharded}
    return lambda array: replace(_keys_without_dcp(array), dealt=_kind(array) in dealt)


def _kind(array: CacheArray) -> tuple[object, ...]:
    """What an array is, whatever its dtype and whether dcp deals its tokens out."""
    return array.part, array.axes, array.tokens and (array.tokens.tokens_per_entry, array.tokens.reach)


def _merged(bands: Iterable[Band]) -> Iterator[Band]:
    """Bands in order; those that overlap at both ends become one, as of groups whose layers alternate."""
    current: Band | None = None
    for band in sorted(bands, key=lambda band: (band.lane, band.source, band.target, band.replica, band.source_span)):
        if current is not None and _overlap(current, band):
            current = replace(
                current,
                source_span=current.source_span.union(band.source_span),
                target_span=current.target_span.union(band.target_span),
            )
            continue
        if current is not None:
            yield current
        current = band
    if current is not None:
        yield current


def _overlap(one: Band, other: Band) -> bool:
    same = (one.lane, one.source, one.target, one.replica) == (other.lane, other.source, other.target, other.replica)
    return same and one.source_span.meets(other.source_span) and one.target_span.meets(other.target_span)


def unit_interval(array: CacheArray, box: Box) -> Interval | None:
    """A box in units of the axis that tensor parallelism splits; None where there is none."""
    for axis, held in zip(array.axes, box, strict=True):
        if axis.units:
            unit = axis.size // axis.units
            return Interval(held.start // unit, -(-held.stop // unit))
    return None


def _lanes(model: ModelCache, key_of: KeyOf) -> tuple[Lane, ...]:
    parts: dict[LaneKey, dict[str, None]] = defaultdict(dict)
    for layer in model.layers():
        for array in layer.spec.arrays():
            parts[key_of(array)][array.part] = None
    return tuple(Lane(key, tuple(parts[key])) for key in sorted(parts))


def _cards(layout: EngineLayout, key_of: KeyOf) -> tuple[Card, ...]:
    numbers = _layer_numbers(layout.model)
    return tuple(Card(rank.coordinates, _pieces(rank.shards, key_of, numbers)) for rank in layout.ranks)


def _layer_numbers(model: ModelCache) -> dict[str, int]:
    return {layer.name: layer.index for layer in model.layers()}


def _pieces(shards: Iterable[Shard], key_of: KeyOf, numbers: Mapping[str, int]) -> tuple[Piece, ...]:
    found: dict[LaneKey, tuple[Interval | None, list[int]]] = {}
    for shard in shards:
        held = found.setdefault(key_of(shard.array), (unit_interval(shard.array, shard.box), []))
        held[1].extend(numbers[place.layer] for place in shard.places)
    return tuple(
        Piece(key, units, Interval(min(layers), max(layers) + 1)) for key, (units, layers) in sorted(found.items())
    )


class _Weaver:
    """Knows every rank's pieces, and cuts reads into bands."""

    def __init__(self, model: ModelCache, key_of: KeyOf, sources: Sequence[Card], targets: Sequence[Card]) -> None:
        self._key_of = key_of
        self._numbers = _layer_numbers(model)
        self._sources = {(card.rank, piece.lane): piece for card in sources for piece in card.pieces}
        self._targets = {(card.rank, piece.lane): piece for card in targets for piece in card.pieces}

    def bands(self, target: RankCoordinates, read: Read) -> Iterable[Band]:
        """The bands of one read: from the source that serves it, and from those that could."""
        key = self._key_of(read.array)
        layers = [self._numbers[layer] for layer in read.layers]
        reached = Interval(min(layers), max(layers) + 1)
        units = unit_interval(read.array, read.box)
        served = choose(read).coordinates
        wanted = self._targets[target, key]
        for end in read.sources:
            held = self._sources[end.coordinates, key]
            for starts, stops in zip(_token_spans(read, end), _token_spans(read, read.target), strict=True):
                source_span = _span(held, reached, units, starts)
                target_span = _span(wanted, reached, units, stops)
                yield Band(key, end.coordinates, target, source_span, target_span, end.coordinates != served)


def _token_spans(read: Read, end: ReadEnd) -> list[Span]:
    """For each progression of a read: which part of one end's tokens it is."""
    if end.tokens is None or read.array.tokens is None:
        return [Span(0, 1)]
    rate = read.array.tokens.tokens_per_entry
    return [_token_span(run, end.tokens, rate) for run in read_runs(read)]


def _token_span(run: TokenRun, share: TokenShare, rate: int) -> Span:
    if run.run == run.step:
        return Span(0, 1)
    first = int(share.local(np.array([run.first // rate], dtype=np.int64))[0])
    held = run.step // rate // share.count
    return Span(first / held, (first + run.run // rate) / held)


def _span(piece: Piece, layers: Interval, units: Interval | None, tokens: Span) -> Span:
    """Layers first, then units, then tokens, each inside the one before."""
    inner = tokens
    if units is not None and piece.units is not None:
        inner = inner.within(*_part(units, piece.units))
    return inner.within(*_part(layers, piece.layers))


def _part(inner: Interval, outer: Interval) -> tuple[float, float]:
    both = inner.intersection(outer)
    return (both.start - outer.start) / len(outer), (both.stop - outer.start) / len(outer)
