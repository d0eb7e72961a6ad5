"""A request between two engines: its tokens, and the blocks that hold it on both sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvweave.core.array import ChunkReach, TokenAxis, WindowReach
from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout
from kvweave.testing.memory_image import HeldArray, RankImage, rank_image

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Request:
    """``num_tokens`` valid at the source, ``start_token`` of them at the target already, a table per group and side.

    ``salt`` and ``stripes`` say which replicas serve it, and in how many parts.
    """

    num_tokens: int
    start_token: int = 0
    source: Mapping[str, Table] = field(default_factory=dict)
    target: Mapping[str, Table] = field(default_factory=dict)
    salt: int | str = 0
    stripes: int = 1


def images_of(layout: EngineLayout) -> list[RankImage]:
    """The images of all ranks of an engine that was built from a cache configuration."""
    if layout.cache is None:
        raise ValueError("layout: it was not built from a CacheConfig, so there is no statement to compare it with")
    return [rank_image(layout.model, layout.parallel, layout.cache, rank) for rank in layout.parallel.ranks()]


def block_tables(
    images: Iterable[RankImage], num_tokens: int, random: np.random.Generator, *, let_go: float = 1.0, spare: int = 0
) -> dict[str, Table]:
    """Random distinct blocks for every group of one engine.

    ``let_go`` is the share of a window's unneeded leading blocks that are null already; ``spare`` blocks more than
    needed end each table with a token axis. A state's table begins with a null and an alignment block if there is room.
    """
    groups: dict[str, list[HeldArray]] = defaultdict(list)
    for image in images:
        for held in image.arrays.values():
            groups[held.group].append(held)
    return {group: _table(members, num_tokens, random, let_go, spare) for group, members in groups.items()}


def first_needed(tokens: TokenAxis, next_token: int) -> int:
    """The first token that computing ``next_token`` looks at."""
    match tokens.reach:
        case WindowReach(window):
            return max(next_token - (window - 1), 0)
        case ChunkReach(chunk):
            return next_token - next_token % chunk
        case _:
            return 0


def _table(members: list[HeldArray], num_tokens: int, random: np.random.Generator, let_go: float, spare: int) -> Table:
    pool = random.permutation(members[0].bytes_at.shape[0]).astype(np.int64)
    if members[0].dealt is None:
        return _state_table(pool, members[0].scratch_blocks)
    length = max(-(-len(held.entries(num_tokens)) // held.block_entries) for held in members)
    if length > len(pool):
        raise ValueError(f"num_tokens {num_tokens} need {length} blocks, the pool has {len(pool)}")
    table = pool[: length + spare].copy()
    unneeded = min(_unneeded_blocks(held, num_tokens) for held in members)
    table[: round(unneeded * let_go)] = NULL_BLOCK
    return table


def _state_table(pool: Table, scratch_blocks: int) -> Table:
    leading = [NULL_BLOCK, *pool[1 + scratch_blocks : 2 + scratch_blocks]]
    return np.array([*leading, *pool[: 1 + scratch_blocks]], dtype=np.int64)


def _unneeded_blocks(held: HeldArray, num_tokens: int) -> int:
    """Whole leading blocks of which no token is visible to the next one."""
    if held.array.tokens is None:
        return 0
    rate = held.array.tokens.tokens_per_entry
    last_tokens = (held.entries(num_tokens) + 1) * rate - 1
    invisible = int(np.count_nonzero(last_tokens < first_needed(held.array.tokens, num_tokens)))
    return invisible // held.block_entries
