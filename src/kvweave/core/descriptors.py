"""A request's rows: plan + block tables + token range -> (source, target, bytes), coalesced.

Everything along the token axis is matched by position. The wanted entries are cut where either side's memory breaks
(block, kernel block, dcp turn); each segment has one address on each side. Neighbours that continue on both sides are
merged before the rows are repeated for every layer, and once more at the end, so contiguous blocks cost a handful of
rows whatever the number of tokens. A request in stripes (``stripes.py``) has the same segments; they are dealt out to
several turns of the replicas' rotation.

What is wanted of a windowed or chunked group is what the target's non-null, not yet cached blocks cover. Of that, the
part that the next token looks at must be there on both sides; what lies further back is copied where the source still
has it, and the target blocks left with a hole are reported as ``incomplete``: they must never be published as a cached
prefix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.array import TokenAxis
from kvweave.core.block_table import NULL_BLOCK, BlockTable, BlockTables, name_tables
from kvweave.core.bundle import Bundle, BundleBook
from kvweave.core.interval import Interval
from kvweave.core.parallel import RankCoordinates
from kvweave.core.portion import Portion, keeps_all_tokens
from kvweave.core.read import Read, ReadEnd
from kvweave.core.rows import Rows, coalesced, in_layers
from kvweave.core.runs import Offsets, Runs, joined
from kvweave.core.stripes import Stripe, stripe_edges
from kvweave.core.tokens import TokenShare, segments
from kvweave.core.whole import LARGEST
from kvweave.errors import BlockTableError

MOST_ROWS = 2**25
"""Pieces of one request for one rank from one source: at three microseconds each (NIXL on shared memory) 100 s."""


@dataclass(frozen=True, eq=False)
class RequestDescriptors(Mapping[RankCoordinates, Rows]):
    """One request's rows for one target rank, by source rank: in the order of ranks, in stripes in that of these.

    ``incomplete`` names, per target group, the blocks of which some wanted entries are not at the source.
    """

    rows: Mapping[RankCoordinates, Rows]
    incomplete: Mapping[str, tuple[int, ...]]

    def __repr__(self) -> str:
        return f"RequestDescriptors({list(self.rows.values())}, incomplete={dict(self.incomplete)})"

    def __getitem__(self, source: RankCoordinates) -> Rows:
        return self.rows[source]

    def __iter__(self) -> Iterator[RankCoordinates]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total_bytes(self) -> int:
        """Bytes that the target rank reads."""
        return sum(rows.total_bytes for rows in self.rows.values())

    @property
    def num_rows(self) -> int:
        """Separate pieces, over all sources."""
        return sum(len(rows) for rows in self.rows.values())


class _Segments(NamedTuple):
    """Stretches of memory that are contiguous on both sides: offsets from a place's base, lengths in entries."""

    source: Offsets
    target: Offsets
    entries: Offsets

    def of(self, chosen: npt.NDArray[np.bool_] | slice) -> _Segments:
        """Some of them."""
        return _Segments(*(column[chosen] for column in self))


class _Found(NamedTuple):
    """The segments of a request, and where each stripe's begin and end among them."""

    segments: _Segments
    edges: Sequence[int]

    def of(self, stripe: Stripe) -> _Segments:
        """Those of one stripe."""
        return self.segments.of(slice(self.edges[stripe.number], self.edges[stripe.number + 1]))


def describe_request(
    bundles: BundleBook,
    source_groups: Sequence[str],
    target_groups: Sequence[str],
    source_blocks: BlockTables,
    target_blocks: BlockTables,
    start_token: int,
    num_tokens: int,
    stripes: Sequence[Stripe],
    portion: Portion | None = None,
) -> RequestDescriptors:
    """The rows of one request for one target rank; see ``TransferPlan.descriptors``."""
    lacking = _token_range(start_token, num_tokens)
    request = _Request(
        name_tables("source", source_groups, source_blocks),
        name_tables("target", target_groups, target_blocks),
        lacking,
        lacking if portion is None else _kept_range(lacking, portion),
        stripes[0].count if stripes else 1,
    )
    parts: dict[RankCoordinates, list[Rows]] = defaultdict(list)
    for stripe in stripes if num_tokens else ():
        for bundle in bundles.of(stripe.turn):
            if portion is not None and not portion.moves(bundle.read.array):
                continue
            rows = request.rows(bundle, stripe)
            if len(rows):
                parts[bundle.source.coordinates].append(rows)
    sources = sorted(parts) if len(stripes) == 1 else parts
    rows_from = {source: coalesced(parts[source]) for source in sources}
    return RequestDescriptors(
        rows_from, {group: tuple(sorted(blocks)) for group, blocks in request.incomplete.items() if blocks}
    )


def _token_range(start_token: int, num_tokens: int) -> Interval:
    for name, value in (("start_token", start_token), ("num_tokens", num_tokens)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise BlockTableError(f"tokens: {name} is {value!r}; it must be a whole number of at least 0")
    if not 0 <= start_token <= num_tokens <= LARGEST:
        raise BlockTableError(
            f"tokens: start_token {start_token} and num_tokens {num_tokens}; 0 <= start_token <= num_tokens < 2**63 "
            "must hold"
        )
    return Interval(int(start_token), int(num_tokens))


def _kept_range(lacking: Interval, portion: Portion) -> Interval:
    if not lacking.start <= portion.kept_start <= lacking.stop:
        raise BlockTableError(f"tokens: kept_start {portion.kept_start} is not within the tokens {lacking}")
    return Interval(portion.kept_start, lacking.stop)


class _Request:
    """One request's tables and tokens; segments are computed once per pair of token geometries."""

    def __init__(
        self,
        source_tables: Mapping[str, BlockTable],
        target_tables: Mapping[str, BlockTable],
        lacking: Interval,
        kept_lacking: Interval,
        stripes: int,
    ) -> None:
        self._source_tables = source_tables
        self._target_tables = target_tables
        self._lacking = lacking
        self._kept_lacking = kept_lacking
        self._stripes = stripes
        self._found: dict[object, _Found] = {}
        self.incomplete: dict[str, set[int]] = defaultdict(set)

    def rows(self, bundle: Bundle, stripe: Stripe) -> Rows:
        """The rows of one bundle in one stripe, for all layers."""
        found = self._cached(bundle.read, bundle.source)
        entries = found.segments.entries
        pieces = len(bundle.runs.source) * (len(entries) if bundle.entries_join else int(entries.sum()))
        if pieces * len(bundle.read.layers) > MOST_ROWS:
            raise BlockTableError(
                f"tokens: {self._lacking} fall into {pieces * len(bundle.read.layers)} pieces from rank "
                f"{bundle.source.coordinates}, at most {MOST_ROWS} are moved; choose memory orders that keep more "
                "bytes together on both sides"
            )
        return in_layers(bundle.source.coordinates, bundle.layers, _runs(found.of(stripe), bundle).merged())

    def _cached(self, read: Read, source: ReadEnd) -> _Found:
        target = read.target
        key = (read.array.tokens, source.placement, target.placement)
        if key not in self._found:
            tokens = read.array.tokens
            lacking = self._kept_lacking if keeps_all_tokens(read.array) else self._lacking
            self._found[key] = (
                self._state(source, target) if tokens is None else self._entries(lacking, tokens, source, target)
            )
        return self._found[key]

    def _state(self, source: ReadEnd, target: ReadEnd) -> _Found:
        blocks = [
            tables[end.group].running_block(end.scratch_blocks, end.num_blocks) * end.geometry.block_stride
            for tables, end in ((self._source_tables, source), (self._target_tables, target))
        ]
        state = _Segments(*(np.array([value], dtype=np.int64) for value in (*blocks, 1)))
        return _Found(state, [0] + [1] * self._stripes)

    def _entries(self, lacking: Interval, tokens: TokenAxis, source: ReadEnd, target: ReadEnd) -> _Found:
        rate = tokens.tokens_per_entry
        wanted = Interval(lacking.start // rate, lacking.stop // rate)
        source_table, target_table = self._source_tables[source.group], self._target_tables[target.group]
        _require_length(source_table, source, wanted)
        _require_length(target_table, target, wanted)
        first, lengths = segments(wanted, (_stretch(source), _stretch(target)))
        for share in (source.tokens, target.tokens):
            if share is not None and share.count > 1:
                held = share.holds(first)
                first, lengths = first[held], lengths[held]
        source_offsets, source_block = _locate(first, source, source_table)
        target_offsets, target_block = _locate(first, target, target_table)
        found = _Segments(source_offsets, target_offsets, lengths)
        here, there = target_block != NULL_BLOCK, source_block != NULL_BLOCK
        if here.all() and there.all():
            return _Found(found, self._edges(target, first, first, wanted.stop))
        visible = tokens.reach.first_needed(lacking.stop) // rate
        needed = first + lengths > visible
        _check_needed(source_table, needed & ~there, np.maximum(first, visible))
        _check_needed(target_table, needed & ~here, np.maximum(first, visible))
        self.incomplete[target.group].update(np.unique(target_block[here & ~there]).tolist())
        kept = here & there
        return _Found(found.of(kept), self._edges(target, first[here], first[kept], wanted.stop))

    def _edges(self, target: ReadEnd, here: Offsets, kept: Offsets, stop: int) -> Sequence[int]:
        """Where stripes begin among the kept segments: what the target wants ``here`` decides, whoever has it."""
        if self._stripes == 1 or not len(here):
            return [0] * self._stripes + [len(kept)]
        edges = stripe_edges(Interval(int(here[0]), stop), _stretch(target), self._stripes)
        found: list[int] = np.searchsorted(kept, edges).tolist()
        return found


def _stretch(end: ReadEnd) -> int:
    kernel = end.geometry.kernel_block_entries
    return kernel if end.tokens is None else end.tokens.stretch(kernel)


def _require_length(table: BlockTable, end: ReadEnd, wanted: Interval) -> None:
    """The table reaches over all wanted entries of this side's share; refused before anything is counted out."""
    share = end.tokens or TokenShare()
    last = share.num_local(wanted.stop)
    if last > share.num_local(wanted.start):
        table.require(-(-last // end.geometry.block_entries))


def _locate(first: Offsets, end: ReadEnd, table: BlockTable) -> tuple[Offsets, Offsets]:
    """Byte offset of each entry from the place's base, and its block id."""
    geometry = end.geometry
    local = first if end.tokens is None else end.tokens.local(first)
    position, within = np.divmod(local, geometry.block_entries)
    blocks = table.lookup(position, end.num_blocks)
    if geometry.kernel_block_entries == geometry.block_entries:
        return blocks * geometry.block_stride + within * geometry.entry_stride, blocks
    kernel, entry = np.divmod(within, geometry.kernel_block_entries)
    return blocks * geometry.block_stride + kernel * geometry.kernel_stride + entry * geometry.entry_stride, blocks


def _check_needed(table: BlockTable, holes: npt.NDArray[np.bool_], first: Offsets) -> None:
    if holes.any():
        raise BlockTableError(
            f"{table.name}: entry {int(first[holes][0])} is needed for the next token, but its block is null; "
            + ("offer it before its window moves on" if table.side == "source" else "give it a block of the target")
        )


def _runs(found: _Segments, bundle: Bundle) -> Runs:
    """Segments times the runs of a kernel block where they are one, of one entry where they are not."""
    if bundle.block_runs is None:
        return _entry_runs(found, bundle)
    whole = found.entries == bundle.source.geometry.kernel_block_entries
    return joined([_repeated(found.of(whole), bundle.block_runs), _entry_runs(found.of(~whole), bundle)])


def _repeated(found: _Segments, runs: Runs) -> Runs:
    return Runs(
        (found.source[:, None] + runs.source).ravel(),
        (found.target[:, None] + runs.target).ravel(),
        np.tile(runs.nbytes, len(found.entries)),
    )


def _entry_runs(found: _Segments, bundle: Bundle) -> Runs:
    """Entries that do not join are taken one by one."""
    starts, ends, lengths = found
    if not bundle.entries_join:
        within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        starts = np.repeat(starts, lengths) + within * bundle.source.geometry.entry_stride
        ends = np.repeat(ends, lengths) + within * bundle.read.target.geometry.entry_stride
        lengths = np.ones(len(starts), dtype=np.int64)
    return Runs(
        (starts[:, None] + bundle.runs.source).ravel(),
        (ends[:, None] + bundle.runs.target).ravel(),
        (lengths[:, None] * bundle.runs.nbytes).ravel(),
    )
