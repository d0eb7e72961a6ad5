"""Block tables of a request that does not exist, for proofs and estimates: in random order, or one block after another.

A table names as many blocks as the request's tokens need; where every layer of a group has a window or chunk, the
blocks that lie wholly behind it are null, as an engine would have them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout, RankLayout, Shard

Tables = dict[str, npt.NDArray[np.int64]]


def all_shards(layout: EngineLayout) -> Iterator[tuple[RankLayout, Shard]]:
    """Every rank's shards."""
    for rank in layout.ranks:
        for shard in rank.shards:
            yield rank, shard


def block_tokens(shard: Shard) -> int:
    """Tokens of the request that one block of this shard reaches over; 1 for a state."""
    if shard.tokens is None or shard.array.tokens is None:
        return 1
    return shard.geometry.block_entries * shard.tokens.count * shard.array.tokens.tokens_per_entry


def room_tokens(layout: EngineLayout) -> int:
    """How long a request may be before some group runs out of blocks; 2**20 where nothing has a token axis."""
    pools = shared_pools(layout)
    paged = [shard for _, shard in all_shards(layout) if shard.tokens is not None]
    return min((shard.num_blocks // len(pools[shard.group]) * block_tokens(shard) for shard in paged), default=1 << 20)


def sample_tables(layout: EngineLayout, num_tokens: int, random: np.random.Generator | None = None) -> Tables:
    """A table for every group: distinct blocks, shuffled by ``random``, in order without it."""
    shards: dict[str, list[Shard]] = defaultdict(list)
    for _, shard in all_shards(layout):
        shards[shard.group].append(shard)
    tables: Tables = {}
    for groups in set(shared_pools(layout).values()):
        members = {group: shards[group] for group in sorted(groups)}
        pool = min(shard.num_blocks for alike in members.values() for shard in alike)
        lengths = [max(table_length(shard, num_tokens) for shard in alike) for alike in members.values()]
        total = min(sum(lengths), pool)
        blocks = np.arange(total) if random is None else random.choice(pool, total, replace=False)
        parts = np.split(blocks.astype(np.int64), np.cumsum(lengths)[:-1])
        for (group, alike), table in zip(members.items(), parts, strict=True):
            table[: min(blocks_let_go(shard, num_tokens) for shard in alike)] = NULL_BLOCK
            tables[group] = table
    return tables


def shared_pools(layout: EngineLayout) -> dict[str, frozenset[str]]:
    """For each group the groups, itself among them, that take blocks from one pool: they lie in the same memory.

    An engine may keep layers of several groups in one tensor; a block then belongs to one group at a time (vLLM's
    hybrid cache).
    """
    pools = {group: frozenset([group]) for group in layout.group_names()}
    for rank in layout.ranks:
        for one, other in _overlapping(rank):
            if other not in pools[one]:
                joined = pools[one] | pools[other]
                pools |= dict.fromkeys(joined, joined)
    return pools


def _overlapping(rank: RankLayout) -> Iterator[tuple[str, str]]:
    """Pairs of groups with places that reach into each other."""
    if len({shard.group for shard in rank.shards}) < 2:
        return
    places = sorted(
        (place.region, place.offset, place.offset + shard.extent_bytes, shard.group)
        for shard in rank.shards
        for place in shard.places
    )
    region, reached, holder = -1, 0, ""
    for number, start, stop, group in places:
        if number == region and start < reached and group != holder:
            yield holder, group
        if number != region or stop > reached:
            region, reached, holder = number, stop, group


def table_length(shard: Shard, num_tokens: int) -> int:
    """Blocks in the table of a request of that many tokens, at least one; a state has its scratch blocks too."""
    if shard.tokens is None or shard.array.tokens is None:
        return 1 + shard.scratch_blocks
    local = shard.tokens.num_local(num_tokens // shard.array.tokens.tokens_per_entry)
    return max(1, -(-local // shard.geometry.block_entries))


def blocks_let_go(shard: Shard, num_tokens: int) -> int:
    """Whole blocks that lie behind the first token that the next one looks at."""
    if shard.tokens is None or shard.array.tokens is None or shard.tokens.count > 1:
        return 0
    first = shard.array.tokens.reach.first_needed(num_tokens) // shard.array.tokens.tokens_per_entry
    return first // shard.geometry.block_entries
