"""Layouts of the simulated engines, and which target rank reads which piece from which source ranks.

Both come from the planner, once per shape: a piece is what the plan lets one rank read from one set of replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec
from kvweave.testing.simulation.scenario import Shape

GROUP = "full"
TOKENS_PER_BLOCK = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """What one target rank reads of every block: its replicas by source rank, and where its rotation begins."""

    sources: tuple[int, ...]
    ordinal: int
    siblings: int


@cache
def layout_of(shape: Shape) -> EngineLayout:
    """The layout of an engine of that shape."""
    spec = FullAttentionSpec(num_kv_heads=shape.heads, head_size=shape.head_size)
    layers = (CacheLayer("model.layers.0.self_attn", 0, spec),)
    model = ModelCache("simulated", 1, (KVCacheGroup(GROUP, layers),))
    cache_config = CacheConfig(block_size=TOKENS_PER_BLOCK, num_blocks=shape.blocks)
    return EngineLayout.build(model, ParallelConfig(tp=shape.tp), cache_config)


@cache
def pieces_of(source: Shape, target: Shape) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of every target rank."""
    source_layout, target_layout = layout_of(source), layout_of(target)
    numbers = {rank.coordinates: number for number, rank in enumerate(source_layout.ranks)}
    plan = plan_transfer(source_layout, target_layout)
    found = []
    for rank in target_layout.ranks:
        reads = plan.of(rank)
        pieces = [
            Piece(tuple(numbers[end.coordinates] for end in read.sources), read.ordinal, read.siblings)
            for read in reads
        ]
        found.append(tuple(dict.fromkeys(pieces)))
    return tuple(found)
