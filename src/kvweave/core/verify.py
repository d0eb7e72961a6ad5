"""The proof of a plan, with labelled memory.

Every element of a sample request gets a label that says what it is: array, layer, entry, position in the whole model.
The labels are laid over both sides' memory by addressing each element on its own, straight from the layouts, without
the plan's intersections, segments or merged runs. Then the plan's rows are followed byte by byte:

- every wanted element of the target lies in exactly one row, and the row's source bytes bear the same label;
- rows never overlap at the target, and move nothing beside the wanted elements;
- every row lies inside one registered region on either side.

A sample has several blocks on both sides in random order, with tails, a prefix hit, and windows that have moved on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.array import FullReach
from kvweave.core.descriptors import RequestDescriptors
from kvweave.core.labels import Labels, Numbering, Wanted, entries_at_source, flat_positions, label_rank, num_entries
from kvweave.core.layout import EngineLayout, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.rows import Rows
from kvweave.core.sample import Tables, all_shards, block_tokens, room_tokens, sample_tables
from kvweave.errors import BlockTableError, PlanError

if TYPE_CHECKING:
    from kvweave.core.plan import TransferPlan

_SEED = 20260311
_MOST_ELEMENTS = 2**26
_SHORT_TOKENS = 300

Progress = Callable[[int, int], None]
"""Told after each step how many of how many are done."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a proof looked at, and what it found wrong; ``ok`` when nothing.

    ``tokens`` is the longest request's length: what was asked for, or what the smaller pool has room for.
    """

    tokens: int = 0
    ranks: int = 0
    requests: int = 0
    rows: int = 0
    nbytes: int = 0
    elements: int = 0
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every byte came out right."""
        return not self.problems

    def plus(self, other: Report) -> Report:
        """Both together."""
        summed = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(Report)}
        return Report(**summed | {"tokens": max(self.tokens, other.tokens)})

    def __str__(self) -> str:
        looked = f"{self.ranks} ranks, {self.requests} requests of up to {self.tokens:,} tokens, {self.rows:,} rows"
        looked += f", {self.nbytes:,} bytes, {self.elements:,} elements"
        return f"proved: {looked}" if self.ok else f"WRONG: {looked}\n" + "\n".join(self.problems)


class _Sample(NamedTuple):
    """One request: valid tokens, tokens the target has, a table per group on both sides, its salt and stripes."""

    num_tokens: int
    start_token: int
    source: Tables
    target: Tables
    salt: int
    stripes: int


class _Proof:
    """One sample request: labels its memory and follows the rows of rank after rank."""

    def __init__(self, plan: TransferPlan, sample: _Sample, numbers: Numbering) -> None:
        self._plan = plan
        self._sample = sample
        self._numbers = numbers
        self._at_source = entries_at_source(plan.prefill, sample.source, sample.num_tokens)
        self._sources: dict[RankCoordinates, Labels] = {}

    def report(self, target: RankCoordinates) -> Report:
        """What one rank's rows do."""
        sample, layout = self._sample, self._plan.decode.at(target)
        try:
            described = self._plan.descriptors(
                target, sample.source, sample.target, sample.num_tokens, sample.start_token, sample.salt, sample.stripes
            )
        except BlockTableError as unfit:
            return Report(problems=(f"{target}: no rows for tables that fit both layouts: {unfit}",))
        wanted = label_rank(
            layout, sample.target, sample.num_tokens, self._numbers, Wanted(sample.start_token, self._at_source)
        )
        problems = _check(self._plan, layout, described, wanted, {rank: self._labels(rank) for rank in described})
        return Report(
            rows=described.num_rows,
            nbytes=described.total_bytes,
            elements=len(wanted.address),
            problems=tuple(f"{target}: {problem}" for problem in problems),
        )

    def _labels(self, source: RankCoordinates) -> Labels:
        if source not in self._sources:
            rank, sample = self._plan.prefill.at(source), self._sample
            self._sources[source] = label_rank(rank, sample.source, sample.num_tokens, self._numbers, None)
        return self._sources[source]


def verify_plan(plan: TransferPlan, num_tokens: int | None = None, progress: Progress | None = None) -> Report:
    """Prove every rank of ``plan`` on sample requests of about ``num_tokens`` tokens (a few blocks by default)."""
    total = _sample_tokens(plan, num_tokens)
    numbers = Numbering.of(plan.prefill, plan.decode)
    samples = list(_samples(plan, total))
    report = Report(total, len(plan.reads), len(samples))
    for number, (part, sample) in enumerate(samples):
        proof = _Proof(part, sample, numbers)
        for done, target in enumerate(plan.reads, start=number * len(plan.reads) + 1):
            report = report.plus(proof.report(target))
            if progress is not None:
                progress(done, len(samples) * len(plan.reads))
    return report


def _sample_tokens(plan: TransferPlan, num_tokens: int | None) -> int:
    """As many tokens as are stated, as both sides' pools have room for, and as a proof can hold."""
    if num_tokens is not None and (not isinstance(num_tokens, int) or num_tokens < 0):
        raise PlanError(f"num_tokens: {num_tokens!r}; it must be a whole number of at least 0")
    engines = (plan.prefill, plan.decode)
    total = min(_default_tokens(*engines) if num_tokens is None else num_tokens, *map(room_tokens, engines))
    for layout in engines:
        _check_elements(layout, total)
    return total


def _samples(plan: TransferPlan, num_tokens: int) -> Iterator[tuple[TransferPlan, _Sample]]:
    """A whole request and one with a prefix hit, this one in as many stripes as there are replicas; then short ones,
    until each rank that may serve has served.

    The short ones are of those parts alone that have not been read from all their replicas.
    """
    random = np.random.default_rng(_SEED)
    turns = _turns(plan)
    replicas = max((len(read.sources) for reads in plan.reads.values() for read in reads), default=1)
    for salt in range(max(2, *turns.values()) if turns else 2):
        tokens, start = (num_tokens, salt * (num_tokens // 3)) if salt < 2 else (min(num_tokens, _SHORT_TOKENS), 0)
        part = plan if salt < 2 else _only({name for name, needed in turns.items() if needed > salt}, plan)
        tables = [sample_tables(layout, tokens, random) for layout in (part.prefill, part.decode)]
        yield part, _Sample(tokens, start, tables[0], tables[1], salt, replicas if salt == 1 else 1)


def _turns(plan: TransferPlan) -> dict[str, int]:
    """For each part, how many requests it takes until each replica has served some rank."""
    turns: dict[str, int] = defaultdict(int)
    for reads in plan.reads.values():
        for read in reads:
            needed = -(-len(read.sources) // min(read.siblings, len(plan.reads)))
            turns[read.array.part] = max(turns[read.array.part], needed)
    return turns


def _only(parts: Collection[str], plan: TransferPlan) -> TransferPlan:
    """The plan and both its engines with these parts alone."""
    engines = [
        replace(layout, ranks=tuple(
            replace(rank, shards=tuple(shard for shard in rank.shards if shard.array.part in parts))
            for rank in layout.ranks
        ))
        for layout in (plan.prefill, plan.decode)
    ]  # fmt: skip
    reads = {rank: tuple(read for read in reads if read.array.part in parts) for rank, reads in plan.reads.items()}
    return replace(plan, prefill=engines[0], decode=engines[1], reads=reads)


def _check_elements(layout: EngineLayout, num_tokens: int) -> None:
    """A proof labels every element of a rank at once; refused where no machine could hold the labels."""
    for rank in layout.ranks:
        elements = sum(
            prod(shard.extents[:-1]) * len(shard.places) * num_entries(shard, num_tokens) // _share_count(shard)
            for shard in rank.shards
        )
        if elements > _MOST_ELEMENTS:
            raise PlanError(
                f"num_tokens: {num_tokens} make {elements} elements to label on rank {rank.coordinates}, at most "
                f"{_MOST_ELEMENTS} are; prove a shorter request"
            )


def _share_count(shard: Shard) -> int:
    return shard.tokens.count if shard.tokens else 1


def _default_tokens(prefill: EngineLayout, decode: EngineLayout) -> int:
    """Two blocks and a half on the side where they are larger; and long enough for every window to have moved on."""
    spans = [_block_tokens(layout) for layout in (prefill, decode)]
    tail = min(spans) // 2 + 3
    return max(2 * max(spans), _longest_reach(decode) + min(spans)) + tail


def _longest_reach(layout: EngineLayout) -> int:
    """Tokens of the longest window or chunk; 0 without any."""
    axes = [shard.array.tokens for _, shard in all_shards(layout)]
    return max((axis.reach.tokens for axis in axes if axis and not isinstance(axis.reach, FullReach)), default=0)


def _block_tokens(layout: EngineLayout) -> int:
    return max((block_tokens(shard) for _, shard in all_shards(layout)), default=1)


def _check(
    plan: TransferPlan,
    target: RankLayout,
    described: RequestDescriptors,
    wanted: Labels,
    sources: Mapping[RankCoordinates, Labels],
) -> Iterator[str]:
    if overlapping := _overlaps(wanted.address, wanted.nbytes):
        yield f"{overlapping} elements of the target's own layout overlap another one in memory"
    ranks = list(described)
    parts = [described[rank] for rank in ranks]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    nothing = np.zeros(0, dtype=np.uint64)
    address = np.concatenate(
        [nothing, *(flat_positions(target, part.target_region, part.target_address) for part in parts)]
    )
    sides = ((plan.prefill.at(rank), part) for rank, part in described.items())
    origins = (flat_positions(rank, part.source_region, part.source_address) for rank, part in sides)
    origin = np.concatenate([nothing, *origins])
    nbytes = np.concatenate([nothing, *(part.nbytes for part in parts)]).astype(np.int64)
    for rank, part in described.items():
        yield from _outside(f"source {rank}", plan.prefill.at(rank), part.source_region, part.source_address, part)
        yield from _outside("target", target, part.target_region, part.target_address, part)
    order = np.argsort(address, kind="stable")
    address, origin, nbytes, owner = address[order], origin[order], nbytes[order], owner[order]
    if overlapping := _overlaps(address, nbytes):
        yield f"{overlapping} rows write over another row's bytes"
    if int(nbytes.sum()) != int(wanted.nbytes.sum()):
        yield f"rows move {int(nbytes.sum())} bytes, wanted are {int(wanted.nbytes.sum())}"
    if len(wanted.address) and len(address):
        yield from _follow(wanted, _Found(address, origin, nbytes, owner), ranks, sources)


class _Found(NamedTuple):
    address: npt.NDArray[np.uint64]
    origin: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
    owner: npt.NDArray[np.int64]


def _follow(
    wanted: Labels, rows: _Found, ranks: list[RankCoordinates], sources: Mapping[RankCoordinates, Labels]
) -> Iterator[str]:
    """From each wanted element to the row that fills it, to the label at the row's source."""
    row = np.maximum(np.searchsorted(rows.address, wanted.address, side="right") - 1, 0)
    within = (wanted.address - rows.address[row]).astype(np.int64)
    covered = (wanted.address >= rows.address[row]) & (within + wanted.nbytes <= rows.nbytes[row])
    if missed := int(np.count_nonzero(~covered)):
        yield f"{missed} wanted elements lie in no row, or are cut by one"
    origin = rows.origin[row] + within.astype(np.uint64)
    for number, rank in enumerate(ranks):
        mine = covered & (rows.owner[row] == number)
        labels = sources[rank].at(origin[mine], wanted.nbytes[mine])
        if wrong := int(np.count_nonzero(labels != wanted.label[mine])):
            yield f"{wrong} elements get other bytes than their own from {rank}"


def _overlaps(address: npt.NDArray[np.uint64], nbytes: npt.NDArray[np.int64]) -> int:
    ends = address[:-1] + nbytes[:-1].astype(np.uint64)
    return int(np.count_nonzero(ends > address[1:]))


def _outside(
    side: str, rank: RankLayout, regions: npt.NDArray[np.int32], address: npt.NDArray[np.uint64], rows: Rows
) -> Iterator[str]:
    starts = np.array([region.address for region in rank.regions], dtype=np.uint64)[regions]
    sizes = np.array([region.nbytes for region in rank.regions], dtype=np.uint64)[regions]
    outside = (address < starts) | (rows.nbytes > sizes) | (address - starts > sizes - rows.nbytes)
    if count := int(np.count_nonzero(outside)):
        yield f"{count} rows leave their registered region at the {side}"
