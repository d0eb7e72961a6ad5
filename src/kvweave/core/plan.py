"""A plan: for every target rank, which box of which array comes from which source ranks.

The plan is the intersection of boxes, nothing else. Eight heads, TP 2 -> 4::

    source   tp0 [0,4)            tp1 [4,8)
    target   tp0 [0,2)  tp1 [2,4)  tp2 [4,6)  tp3 [6,8)
    reads    tp0 <- tp0 [0,2)   tp1 <- tp0 [2,4)   tp2 <- tp1 [4,6)   tp3 <- tp1 [6,8)

Where the sources' boxes do not end where the target's do, the target's box is cut at their edges. Pieces that several
sources hold alike become one read with several sources. A plan holds no request: block tables, tokens and the choice
of a replica enter in ``TransferPlan.descriptors``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod

from kvweave.core.array import Axis
from kvweave.core.block_table import BlockTables
from kvweave.core.bundle import BundleBook
from kvweave.core.compatibility import check_compatibility, uncovered
from kvweave.core.descriptors import RequestDescriptors, describe_request
from kvweave.core.interval import Box, box_contains, box_intersection
from kvweave.core.layout import EngineLayout, Place, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.portion import Portion
from kvweave.core.read import Read, ReadEnd
from kvweave.core.replicas import Salt, choose
from kvweave.core.stripes import Stripe, checked_stripes
from kvweave.core.tokens import TokenShare, shared_runs
from kvweave.core.verify import Progress, Report, verify_plan
from kvweave.errors import IncompatibleLayouts, Mismatch, PlanError

MOST_CELLS = 4096
MOST_COMPARISONS = 2**21
"""Pieces into which the sources' edges may cut one box, and those times the sources that may hold them. An axis has at
most as many pieces as ranks, so real pairs stay far below; a peer's description must make nobody think for hours."""


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Who reads what from whom, between two engines of these layouts."""

    prefill: EngineLayout
    decode: EngineLayout
    reads: Mapping[RankCoordinates, tuple[Read, ...]]
    _books: dict[RankCoordinates, BundleBook] = field(init=False, repr=False, default_factory=dict)

    def __repr__(self) -> str:
        number = sum(len(reads) for reads in self.reads.values())
        return f"<plan for {self.decode.model.name}: {number} reads of {len(self.reads)} target ranks>"

    def of(self, target: RankLayout | RankCoordinates) -> tuple[Read, ...]:
        """The reads of one target rank; raises ``PlanError`` if the plan was not made for it."""
        coordinates = target.coordinates if isinstance(target, RankLayout) else target
        if coordinates not in self.reads:
            planned = ", ".join(str(rank) for rank in self.reads)
            raise PlanError(
                f"target: {coordinates} is not in this plan, which has {planned}; plan it or name one of these"
            )
        return self.reads[coordinates]

    def sources(self, target: RankLayout | RankCoordinates, salt: Salt = 0) -> dict[str, tuple[RankCoordinates, ...]]:
        """Which prefill ranks a target reads from, per cache group of the target, for a request of that salt."""
        found: dict[str, set[RankCoordinates]] = defaultdict(set)
        for read in self.of(target):
            found[read.target.group].add(choose(read, salt).coordinates)
        return {group: tuple(sorted(ranks)) for group, ranks in found.items()}

    def descriptors(
        self,
        target: RankLayout | RankCoordinates,
        source_blocks: BlockTables,
        target_blocks: BlockTables,
        num_tokens: int,
        start_token: int = 0,
        salt: Salt = 0,
        stripes: int | Sequence[Stripe] = 1,
        portion: Portion | None = None,
    ) -> RequestDescriptors:
        """The rows of one request for one target rank: a mapping from source rank to its rows.

        ``num_tokens`` is how many tokens of the request are valid at the source, counted from its beginning;
        ``start_token`` how many of them the target already holds. Tables give logical block ids, per group: a mapping
        by group name or one table per group in the order of ``group_names()``; with a single group the table alone.
        ``NULL_BLOCK`` (-1) stands where a window has no block. ``salt`` (an int that counts requests, or any text)
        chooses among replicas; with several ``stripes`` as many replicas serve a part of the tokens each, from the one
        that ``salt`` chooses on, at most as many as there are. The bytes are the same whatever ``salt`` and
        ``stripes``. A sequence of ``Stripe`` gives the rows of these parts alone. ``portion`` says what moves where a
        request moves in several goes. Raises ``BlockTableError`` when tables and tokens do not fit the layouts.
        """
        book = self._book(target)
        return describe_request(
            book, self.prefill.group_names(), self.decode.group_names(), source_blocks, target_blocks,
            start_token, num_tokens, checked_stripes(salt, stripes, book.most_sources), portion,
        )  # fmt: skip

    def _book(self, target: RankLayout | RankCoordinates) -> BundleBook:
        coordinates = target.coordinates if isinstance(target, RankLayout) else target
        if coordinates not in self._books:
            self._books[coordinates] = BundleBook(self.of(target))
        return self._books[coordinates]

    def verify(self, num_tokens: int | None = None, progress: Progress | None = None) -> Report:
        """Prove the plan with labelled memory: see ``core.verify``."""
        return verify_plan(self, num_tokens, progress)


def plan_transfer(
    prefill: EngineLayout, decode: EngineLayout, target: RankLayout | RankCoordinates | None = None
) -> TransferPlan:
    """Plan the transfer from ``prefill`` to ``decode``: for all ranks, or for one ``target`` rank.

    Raises ``IncompatibleLayouts`` with every reason when the pair cannot work.
    """
    problems = check_compatibility(prefill, decode)
    if problems:
        raise IncompatibleLayouts(problems)
    targets = (
        decode.ranks
        if target is None
        else (decode.at(target.coordinates if isinstance(target, RankLayout) else target),)
    )
    planner = _Planner(prefill, decode)
    reads = {rank.coordinates: tuple(planner.reads(rank)) for rank in targets}
    if planner.missing:
        raise IncompatibleLayouts(planner.missing)
    return TransferPlan(prefill, decode, reads)


@dataclass(frozen=True, slots=True)
class _Source:
    """A shard of a prefill rank that may serve."""

    rank: RankLayout
    shard: Shard


@dataclass(frozen=True, slots=True)
class _Cell:
    """A box of some layers; for each share of the tokens, the equal sources that hold it."""

    layers: tuple[str, ...]
    box: Box
    sources: tuple[tuple[ReadEnd, ...], ...]


class _Planner:
    """Indexes the prefill side once, then plans rank after rank; what equal ranks want is looked up once."""

    def __init__(self, prefill: EngineLayout, decode: EngineLayout) -> None:
        self.missing: list[Mismatch] = []
        self._decode = decode
        self._by_array: dict[tuple[str, tuple[Axis, ...]], list[_Source]] = defaultdict(list)
        self._places: dict[tuple[RankCoordinates, str], dict[str, Place]] = {}
        self._cells: dict[object, tuple[_Cell, ...]] = {}
        for rank in prefill.ranks:
            for shard in rank.shards:
                self._by_array[shard.array.part, shard.array.axes].append(_Source(rank, shard))

    def reads(self, rank: RankLayout) -> Iterator[Read]:
        for shard in rank.shards:
            places = {place.layer: place for place in shard.places}
            position = self._positions[rank.coordinates, shard.array.part, shard.places[0].layer]
            for cell in self._cells_of(shard):
                end = ReadEnd.of(rank, shard, cell.box, [places[layer] for layer in cell.layers])
                for sources in cell.sources:
                    yield Read(shard.array, cell.box, cell.layers, sources, end, *position)

    def _cells_of(self, target: Shard) -> tuple[_Cell, ...]:
        layers = tuple(place.layer for place in target.places)
        key = (target.array.part, target.array.axes, target.box, target.tokens, layers)
        if key not in self._cells:
            self._cells[key] = tuple(self._find_cells(target))
        return self._cells[key]

    def _find_cells(self, target: Shard) -> Iterator[_Cell]:
        for layers, sources in self._layer_cells(target):
            if self._too_many(target, layers, sources):
                continue
            for box in _box_cells(target, sources):
                by_share: dict[TokenShare | None, list[_Source]] = defaultdict(list)
                for source in sources:
                    if box_contains(source.shard.box, box):
                        by_share[source.shard.tokens].append(source)
                if uncovered(target.tokens, by_share):
                    self.missing.append(_not_held(target, layers, box))
                    continue
                ends = (self._source_ends(by_share[share], box, layers) for share in sorted(by_share, key=str))
                yield _Cell(layers, box, tuple(ends))

    def _too_many(self, target: Shard, layers: tuple[str, ...], sources: list[_Source]) -> bool:
        """Whether the sources cut the target's box into more pieces than any engine would; then that is a mismatch."""
        cells = prod(
            len({edge for box in {source.shard.box for source in sources} for edge in (box[axis].start, box[axis].stop)
                 if interval.start < edge < interval.stop}) + 1
            for axis, interval in enumerate(target.box)
        )  # fmt: skip
        if cells <= MOST_CELLS and cells * len(sources) <= MOST_COMPARISONS:
            return False
        self.missing.append(
            Mismatch(
                f"{layers[0]} {target.array.part}", f"{len(sources)} ranks that cut it into {cells} pieces",
                f"at most {MOST_CELLS} pieces, {MOST_COMPARISONS // max(cells, 1)} ranks for so many",
                "cut the axes into equal parts",
            )
        )  # fmt: skip
        return True

    def _layer_cells(self, target: Shard) -> Iterator[tuple[tuple[str, ...], list[_Source]]]:
        """The target's layers, split by which sources hold them, with those sources."""
        nearby = [
            source for source in self._by_array[target.array.part, target.array.axes]
            if box_intersection(source.shard.box, target.box) and _common(source.shard.tokens, target.tokens)
        ]  # fmt: skip
        holders: dict[frozenset[str], list[_Source]] = defaultdict(list)
        for source in nearby:
            holders[source.shard.layers].append(source)
        cells: dict[tuple[frozenset[str], ...], list[str]] = defaultdict(list)
        for place in target.places:
            cells[tuple(layers for layers in holders if place.layer in layers)].append(place.layer)
        for sets, names in cells.items():
            yield tuple(names), [source for layers in sets for source in holders[layers]]

    def _source_ends(self, sources: Iterable[_Source], box: Box, layers: Sequence[str]) -> tuple[ReadEnd, ...]:
        return tuple(self._source_end(source, box, layers) for source in sorted(sources, key=_by_rank))

    def _source_end(self, source: _Source, box: Box, layers: Sequence[str]) -> ReadEnd:
        key = (source.rank.coordinates, source.shard.name)
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = {place.layer: place for place in source.shard.places}
        return ReadEnd.of(source.rank, source.shard, box, [places[layer] for layer in layers])

    @cached_property
    def _positions(self) -> dict[tuple[RankCoordinates, str, str], tuple[int, int]]:
        """For each target shard: which of the ranks with an equal box it is, and how many these are.

        Whatever their tokens: ranks that dcp deals different tokens to read from the same replicas.
        """
        equal: dict[tuple[str, str, Box], list[RankCoordinates]] = defaultdict(list)
        for rank in self._decode.ranks:
            for shard in rank.shards:
                equal[shard.array.part, shard.places[0].layer, shard.box].append(rank.coordinates)
        return {
            (coordinates, part, layer): (number, len(ranks))
            for (part, layer, _), ranks in equal.items()
            for number, coordinates in enumerate(ranks)
        }


def _box_cells(target: Shard, sources: Iterable[_Source]) -> Iterator[Box]:
    boxes = {source.shard.box for source in sources}
    axes = [interval.cut(box[number] for box in boxes) for number, interval in enumerate(target.box)]
    return product(*axes)


def _by_rank(source: _Source) -> RankCoordinates:
    return source.rank.coordinates


def _common(source: TokenShare | None, target: TokenShare | None) -> bool:
    if source is None or target is None:
        return source is target
    return bool(shared_runs(source, target)[0])


def _not_held(target: Shard, layers: tuple[str, ...], box: Box) -> Mismatch:
    return Mismatch(
        f"{layers[0]} {target.array.part}", "no rank that holds it", target.array.box_text(box),
        "describe every prefill rank, or state the intervals so that they cover the axis",
    )  # fmt: skip
