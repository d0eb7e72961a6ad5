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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.array import FullReach
from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.descriptors import RequestDescriptors, Rows
from kvweave.core.layout import EngineLayout, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.sample import all_shards, block_tokens, room_tokens, sample_tables
from kvweave.errors import BlockTableError, PlanError

if TYPE_CHECKING:
    from kvweave.core.plan import TransferPlan

_SEED = 20260311

Progress = Callable[[int, int], None]
"""Told after each step how many of how many are done."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a proof looked at, and what it found wrong; ``ok`` when nothing."""

    ranks: int
    requests: int
    rows: int
    nbytes: int
    elements: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every byte came out right."""
        return not self.problems

    def __str__(self) -> str:
        looked = f"{self.ranks} ranks, {self.requests} requests, {self.rows:,} rows, {self.nbytes:,} bytes"
        looked += f", {self.elements:,} elements"
        return f"proved: {looked}" if self.ok else f"WRONG: {looked}\n" + "\n".join(self.problems)


class _Sample(NamedTuple):
    """One request: valid tokens, tokens the target has, and a table per group on both sides."""

    num_tokens: int
    start_token: int
    source: dict[str, npt.NDArray[np.int64]]
    target: dict[str, npt.NDArray[np.int64]]


class _Wanted(NamedTuple):
    """What a target wants: entries from ``start_token`` on; behind the reach only where the source still has them."""

    start_token: int
    at_source: Mapping[tuple[str, str], npt.NDArray[np.bool_]]


class _Labels(NamedTuple):
    """Labelled memory of one rank, by rising address: element address, size, label."""

    address: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]


def verify_plan(plan: TransferPlan, num_tokens: int | None = None, progress: Progress | None = None) -> Report:
    """Prove every rank of ``plan`` on sample requests of about ``num_tokens`` tokens (a few blocks by default)."""
    samples = list(_samples(plan.prefill, plan.decode, num_tokens))
    numbers = _Numbering.of(plan.prefill, plan.decode)
    problems: list[str] = []
    rows = nbytes = elements = 0
    for number, sample in enumerate(samples):
        sources: dict[RankCoordinates, _Labels] = {}
        at_source = _at_source(plan.prefill, sample)
        for done, target in enumerate(plan.reads, start=number * len(plan.reads) + 1):
            try:
                described = plan.descriptors(
                    target, sample.source, sample.target, sample.num_tokens, sample.start_token, salt=sample.start_token
                )
            except BlockTableError as unfit:
                problems.append(f"{target}: no rows for tables that fit both layouts: {unfit}")
                continue
            for source in described:
                if source not in sources:
                    sources[source] = _labels(plan.prefill.at(source), sample.source, sample, numbers, None)
            wanted = _labels(
                plan.decode.at(target), sample.target, sample, numbers, _Wanted(sample.start_token, at_source)
            )
            problems += [
                f"{target}: {problem}" for problem in _check(plan, plan.decode.at(target), described, wanted, sources)
            ]
            rows, nbytes, elements = (
                rows + described.num_rows,
                nbytes + described.total_bytes,
                elements + len(wanted.address),
            )
            if progress is not None:
                progress(done, len(samples) * len(plan.reads))
    return Report(len(plan.reads), len(samples), rows, nbytes, elements, tuple(problems))


def _samples(prefill: EngineLayout, decode: EngineLayout, num_tokens: int | None) -> Iterator[_Sample]:
    """A whole request and one with a prefix hit, with as many tokens as both sides' pools have room for."""
    if num_tokens is not None and (not isinstance(num_tokens, int) or num_tokens < 0):
        raise PlanError(f"num_tokens: {num_tokens!r}; it must be a whole number of at least 0")
    room = min(room_tokens(layout) for layout in (prefill, decode))
    total = min(_default_tokens(prefill, decode) if num_tokens is None else num_tokens, room)
    random = np.random.default_rng(_SEED)
    for start in dict.fromkeys((0, total // 3)):
        tables = [sample_tables(layout, total, random) for layout in (prefill, decode)]
        yield _Sample(total, start, tables[0], tables[1])


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


class _Numbering(NamedTuple):
    """A number for every array, and the parts whose last axis is whole and contiguous wherever they lie."""

    numbers: Mapping[tuple[str, str], int]
    whole: frozenset[str]

    @staticmethod
    def of(*layouts: EngineLayout) -> _Numbering:
        shards = [shard for layout in layouts for _, shard in all_shards(layout)]
        names = {(place.layer, shard.array.part) for shard in shards for place in shard.places}
        cut = {shard.array.part for shard in shards if not _has_whole_last_axis(shard)}
        parts = frozenset(shard.array.part for shard in shards)
        return _Numbering({name: number for number, name in enumerate(sorted(names))}, parts - cut)


def _has_whole_last_axis(shard: Shard) -> bool:
    axes = shard.array.axes
    return (
        bool(axes)
        and shard.geometry.axis_strides[-1] == shard.array.dtype.nbytes
        and shard.extents[-1] == axes[-1].size
    )


def _labels(
    rank: RankLayout,
    tables: Mapping[str, npt.NDArray[np.int64]],
    sample: _Sample,
    numbers: _Numbering,
    wanted: _Wanted | None,
) -> _Labels:
    """The rank's labelled memory; with ``wanted`` only what a target wants of it."""
    if not rank.shards:
        return _Labels(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    parts = [_shard_labels(rank, shard, tables[shard.group], sample, numbers, wanted) for shard in rank.shards]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return _Labels(*(column[order] for column in joined))


def _shard_labels(
    rank: RankLayout,
    shard: Shard,
    table: npt.NDArray[np.int64],
    sample: _Sample,
    numbers: _Numbering,
    wanted: _Wanted | None,
) -> _Labels:
    entries, offsets = _entry_offsets(shard, table, sample.num_tokens, wanted)
    positions, inside, nbytes = _elements(shard, shard.array.part in numbers.whole)
    per_entry = shard.array.entry_bytes
    labels = (entries[:, None] * per_entry + positions).ravel()
    relative = (offsets[:, None] + inside).ravel().astype(np.uint64)
    bases = [rank.regions[place.region].address + place.offset for place in shard.places]
    identities = [numbers.numbers[place.layer, shard.array.part] << 44 for place in shard.places]
    address = (np.array(bases, dtype=np.uint64)[:, None] + relative).ravel()
    label = (np.array(identities, dtype=np.int64)[:, None] + labels).ravel()
    return _Labels(address, np.full(len(address), nbytes, dtype=np.int64), label)


def _entry_offsets(
    shard: Shard, table: npt.NDArray[np.int64], num_tokens: int, wanted: _Wanted | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The entries that lie in memory, and each one's byte offset, one by one."""
    geometry = shard.geometry
    if shard.tokens is None or shard.array.tokens is None:
        block = table[len(table) - 1 - shard.scratch_blocks]
        return np.zeros(1, dtype=np.int64), np.array([block * geometry.block_stride], dtype=np.int64)
    rate = shard.array.tokens.tokens_per_entry
    entries = np.arange((wanted.start_token if wanted else 0) // rate, num_tokens // rate, dtype=np.int64)
    if wanted is not None:
        needed = entries >= shard.array.tokens.reach.first_needed(num_tokens) // rate
        entries = entries[needed | wanted.at_source[shard.places[0].layer, shard.array.part][entries]]
    entries = entries[entries // shard.tokens.interleave % shard.tokens.count == shard.tokens.index]
    turn = shard.tokens.interleave * shard.tokens.count
    local = entries // turn * shard.tokens.interleave + entries % shard.tokens.interleave
    blocks = table[local // geometry.block_entries]
    entries, local, blocks = (column[blocks != NULL_BLOCK] for column in (entries, local, blocks))
    within = local % geometry.block_entries
    kernel, rest = within // geometry.kernel_block_entries, within % geometry.kernel_block_entries
    return entries, blocks * geometry.block_stride + kernel * geometry.kernel_stride + rest * geometry.entry_stride


def _at_source(prefill: EngineLayout, sample: _Sample) -> dict[tuple[str, str], npt.NDArray[np.bool_]]:
    """For each array, which entries lie in some source rank's memory."""
    found: dict[tuple[str, str], npt.NDArray[np.bool_]] = {}
    for _, shard in all_shards(prefill):
        held = np.zeros(sample.num_tokens + 1, dtype=np.bool_)
        held[_entry_offsets(shard, sample.source[shard.group], sample.num_tokens, None)[0]] = True
        for place in shard.places:
            key = (place.layer, shard.array.part)
            found[key] = found[key] | held if key in found else held
    return found


def _elements(shard: Shard, last_axis_whole: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Of one entry: each element's byte position in the whole model's array, its byte offset in memory, and its size.

    The last axis counts as one element where it is whole and contiguous on both sides.
    """
    item = shard.array.dtype.nbytes
    axes = list(zip(shard.array.axes, shard.box, shard.geometry.axis_strides, strict=True))
    nbytes, reach = item, item
    if last_axis_whole:
        nbytes = reach = item * axes.pop()[0].size
    positions = inside = np.zeros(1, dtype=np.int64)
    for axis, interval, stride in reversed(axes):
        steps = np.arange(len(interval), dtype=np.int64)[:, None]
        positions = ((steps + interval.start) * reach + positions).ravel()
        inside = (steps * stride + inside).ravel()
        reach *= axis.size
    return positions, inside, nbytes


def _check(
    plan: TransferPlan,
    target: RankLayout,
    described: RequestDescriptors,
    wanted: _Labels,
    sources: Mapping[RankCoordinates, _Labels],
) -> Iterator[str]:
    if overlapping := _overlaps(wanted.address, wanted.nbytes):
        yield f"{overlapping} elements of the target's own layout overlap another one in memory"
    ranks = list(described)
    parts = [described[rank] for rank in ranks]
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    address = np.concatenate([part.target_address for part in parts]) if parts else np.zeros(0, dtype=np.uint64)
    origin = np.concatenate([part.source_address for part in parts]) if parts else address
    nbytes = np.concatenate([part.nbytes for part in parts]).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
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
    wanted: _Labels, rows: _Found, ranks: list[RankCoordinates], sources: Mapping[RankCoordinates, _Labels]
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
        labels = _labels_at(sources[rank], origin[mine], wanted.nbytes[mine])
        if wrong := int(np.count_nonzero(labels != wanted.label[mine])):
            yield f"{wrong} elements get other bytes than their own from {rank}"


def _labels_at(
    labels: _Labels, address: npt.NDArray[np.uint64], nbytes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The label of the source bytes at each address; -1 where no element of a source holds all of them."""
    at = np.maximum(np.searchsorted(labels.address, address, side="right") - 1, 0)
    within = (address - labels.address[at]).astype(np.int64)
    inside = (address >= labels.address[at]) & (within + nbytes <= labels.nbytes[at])
    return np.where(inside, labels.label[at] + within, -1)


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
