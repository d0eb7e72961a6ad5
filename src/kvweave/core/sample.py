"""Block tables of a request that does not exist, for proofs and estimates: in random order, or one block after another.

A table names as many blocks as the request's tokens need; where every layer of a group has a window or chunk, the
blocks that lie wholly behind it are null, as an engine would have them. Groups that lie in the same region take their
blocks from one pool: there a block id belongs to one group at a time (vLLM lays its groups over one another).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates

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
    paged = [shard for _, shard in all_shards(layout) if shard.tokens is not None]
    sharers = Counter(_pools(layout).values())
    shares = {group: sharers[pool] for group, pool in _pools(layout).items()}
    return min((shard.num_blocks // shares[shard.group] * block_tokens(shard) for shard in paged), default=1 << 20)


def sample_tables(layout: EngineLayout, num_tokens: int, random: np.random.Generator | None = None) -> Tables:
    """A table for every group: distinct blocks, shuffled by ``random``, in order without it."""
    shards: dict[str, list[Shard]] = defaultdict(list)
    for _, shard in all_shards(layout):
        shards[shard.group].append(shard)
    tables: Tables = {}
    free: dict[str, npt.NDArray[np.int64]] = {}
    pools = _pools(layout)
    for group, members in shards.items():
        size = min(shard.num_blocks for shard in members)
        needed = max(_table_length(shard, num_tokens) for shard in members)
        if pools[group] not in free:
            free[pools[group]] = (np.arange(size) if random is None else random.permutation(size)).astype(np.int64)
        tables[group], free[pools[group]] = np.split(free[pools[group]], [needed])
        tables[group][: min(_let_go(shard, num_tokens) for shard in members)] = NULL_BLOCK
    return tables


def _pools(layout: EngineLayout) -> dict[str, str]:
    """For each group the first of those that share a region with it, be it by way of another group."""
    pools = {group: group for group in layout.group_names()}
    owners: dict[tuple[RankCoordinates, int], str] = {}
    for rank, shard in all_shards(layout):
        for region in {place.region for place in shard.places}:
            mine, theirs = pools[shard.group], pools[owners.setdefault((rank.coordinates, region), shard.group)]
            if mine != theirs:
                pools = {group: theirs if pool == mine else pool for group, pool in pools.items()}
    return pools


def _table_length(shard: Shard, num_tokens: int) -> int:
    if shard.tokens is None or shard.array.tokens is None:
        return 1 + shard.scratch_blocks
    local = shard.tokens.num_local(num_tokens // shard.array.tokens.tokens_per_entry)
    return max(1, -(-local // shard.geometry.block_entries))


def _let_go(shard: Shard, num_tokens: int) -> int:
    """Whole blocks that lie behind the first token that the next one looks at."""
    if shard.tokens is None or shard.array.tokens is None or shard.tokens.count > 1:
        return 0
    first = shard.array.tokens.reach.first_needed(num_tokens) // shard.array.tokens.tokens_per_entry
    return first // shard.geometry.block_entries
