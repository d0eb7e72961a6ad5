"""Layouts of the simulated engines, and which target rank reads which piece from which source ranks.

Both come from the planner, once per shape: a piece is what the plan lets one rank read from one set of replicas, of
one kind of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from kvweave.core.array import Axis, DType
from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.portion import keeps_all_tokens
from kvweave.core.read import Read as PlannedRead
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec, StatePart
from kvweave.core.stripes import Stripe, stripe_edges
from kvweave.protocol.effects import PostReads
from kvweave.testing.simulation.blocks import KEPT, STATE, WINDOW, WINDOW_TOKENS, first_visible
from kvweave.testing.simulation.memory import content, num_blocks, slot_of, state_content
from kvweave.testing.simulation.scenario import TOKENS_PER_BLOCK, Shape


@dataclass(frozen=True, eq=False, slots=True)
class RankReads:
    """What one target rank reads: ``planned`` all of it, ``pieces`` one read for each piece."""

    planned: tuple[PlannedRead, ...]
    pieces: tuple[PlannedRead, ...]


@cache
def layout_of(shape: Shape) -> EngineLayout:
    """The layout of an engine of that shape."""
    kinds: dict[str, LayerSpec] = {KEPT: FullAttentionSpec(num_kv_heads=shape.heads, head_size=shape.head_size)}
    if shape.mixed:
        part = StatePart("ssm", (Axis("head", shape.heads, shape.heads), Axis("dim", 8)), DType.of("float32"))
        kinds |= {WINDOW: SlidingWindowSpec(shape.heads, shape.head_size, WINDOW_TOKENS)}
        kinds |= {STATE: MambaSpec("other", (part,))}
    groups = tuple(
        KVCacheGroup(group, (CacheLayer(f"model.layers.{number}", number, spec),))
        for number, (group, spec) in enumerate(kinds.items())
    )
    model = ModelCache("simulated", len(groups), groups)
    cache_config = CacheConfig(block_size=TOKENS_PER_BLOCK, num_blocks=shape.blocks)
    return EngineLayout.build(model, ParallelConfig(tp=shape.tp), cache_config)


@cache
def rank_numbers(shape: Shape) -> Mapping[RankCoordinates, int]:
    """The ranks' numbers."""
    return {rank.coordinates: number for number, rank in enumerate(layout_of(shape).ranks)}


@cache
def reads_of(source: Shape, target: Shape) -> tuple[RankReads, ...]:
    """The reads of every target rank."""
    target_layout = layout_of(target)
    plan = plan_transfer(layout_of(source), target_layout)
    found = []
    for rank in target_layout.ranks:
        planned = tuple(plan.of(rank))
        pieces = {
            (read.target.group, tuple(end.coordinates for end in read.sources), read.ordinal): read for read in planned
        }
        found.append(RankReads(planned, tuple(pieces.values())))
    return tuple(found)


def slot_pairs(piece: PlannedRead, command: PostReads, stripe: Stripe) -> list[tuple[int, int]]:
    """From which slots into which one stripe of a piece is read; see ``core/descriptors.py`` for the rules."""
    array, group = piece.array, piece.target.group
    if command.portion is not None and not command.portion.moves(array):
        return []
    source, target = command.source_tables[group], command.target_tables[group]
    if array.tokens is None:
        return [] if stripe.number else [(source[-1] * TOKENS_PER_BLOCK, target[-1] * TOKENS_PER_BLOCK)]
    kept_start = command.start_token if command.portion is None else command.portion.kept_start
    first = kept_start if keeps_all_tokens(array) else command.start_token
    wanted = [n for n in range(first, command.num_tokens) if target[n // TOKENS_PER_BLOCK] != NULL_BLOCK]
    if wanted and stripe.count > 1:
        edges = stripe_edges(Interval(wanted[0], command.num_tokens), TOKENS_PER_BLOCK, stripe.count)
        wanted = [n for n in wanted if edges[stripe.number] <= n < edges[stripe.number + 1]]
    there = [n for n in wanted if source[n // TOKENS_PER_BLOCK] != NULL_BLOCK]
    return [(slot_of(source, n), slot_of(target, n)) for n in there]


def tables_fit(command: PostReads, source: Shape) -> bool:
    """Whether a rank finds everything that it shall read in the tables, and in blocks that are there."""
    others = command.portion is None or command.portion.others
    ends = (command.source_tables, command.target_tables)
    for tables in ends:
        if len(tables.get(KEPT, ())) < num_blocks(command.num_tokens):
            return False
        if others and source.mixed and not _ends_whole(tables, command.start_token, command.num_tokens):
            return False
    return all(block < source.blocks for table in command.source_tables.values() for block in table)


def _ends_whole(tables: Mapping[str, tuple[int, ...]], start_token: int, num_tokens: int) -> bool:
    """Whether the window's visible part and the state have blocks."""
    window, state = tables.get(WINDOW, ()), tables.get(STATE, ())
    if len(window) < num_blocks(num_tokens) or not state or state[-1] == NULL_BLOCK:
        return False
    visible = range(max(start_token, first_visible(num_tokens)), num_tokens)
    return all(window[token // TOKENS_PER_BLOCK] != NULL_BLOCK for token in visible)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a target's blocks must hold: the tokens of one run from ``start_token`` on, and its end."""

    tables: Mapping[str, tuple[int, ...]]
    start_token: int
    num_tokens: int
    serial: int


def wrong_blocks(
    source: Shape, target: Shape, wanted: Wanted, label: Callable[[int, int, int], int | None]
) -> Iterator[tuple[int, int]]:
    """The ranks and blocks whose content is not what is wanted, by the ``label`` of (rank, piece, slot)."""
    for rank, reads in enumerate(reads_of(source, target)):
        for place, piece in enumerate(reads.pieces):
            for slot, right in _contents(piece, wanted):
                if label(rank, place, slot) != right:
                    yield rank, slot // TOKENS_PER_BLOCK


def _contents(piece: PlannedRead, wanted: Wanted) -> Iterator[tuple[int, int]]:
    table, tokens, stop = wanted.tables[piece.target.group], piece.array.tokens, wanted.num_tokens
    if tokens is None:
        yield table[-1] * TOKENS_PER_BLOCK, state_content(wanted.serial, stop)
        return
    for token in range(max(wanted.start_token, tokens.reach.first_needed(stop)), stop):
        yield slot_of(table, token), content(wanted.serial, token)
