"""Which blocks of an engine's cache are free, per group. Every block is given out once and taken back once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.layout import EngineLayout, Shard
from kvweave.core.sample import blocks_let_go, table_length
from kvweave.errors import LocalProtocolError


class BlockPool:
    """Free blocks of every group of ``layout``, handed out in an order drawn from ``seed``, as a worn pool would."""

    def __init__(self, layout: EngineLayout, seed: int = 0) -> None:
        self._shards: dict[str, list[Shard]] = defaultdict(list)
        for rank in layout.ranks:
            for shard in rank.shards:
                self._shards[shard.group].append(shard)
        self._free = {group: list(range(min(s.num_blocks for s in shards))) for group, shards in self._shards.items()}
        for blocks in self._free.values():
            random.Random(seed).shuffle(blocks)

    def allocate(self, num_tokens: int) -> dict[str, list[int]]:
        """Tables for a request of ``num_tokens`` tokens; blocks wholly behind every reach of a group are null.

        Raises ``LocalProtocolError`` when a group has too few free blocks; then nothing was taken.
        """
        wanted = {group: self._wanted(shards, num_tokens) for group, shards in self._shards.items()}
        for group, (behind, length) in wanted.items():
            if length - behind > len(self._free[group]):
                raise LocalProtocolError(
                    f"group {group}: {len(self._free[group])} free blocks, {num_tokens} tokens need {length - behind}; "
                    "give the engine more blocks or wait until some are free"
                )
        return {
            group: [NULL_BLOCK] * behind + [self._free[group].pop() for _ in range(length - behind)]
            for group, (behind, length) in wanted.items()
        }

    def release(self, tables: Mapping[str, Sequence[int]]) -> None:
        """Takes a request's blocks back; raises ``LocalProtocolError`` for a block that is free already."""
        for group, blocks in tables.items():
            returned = [block for block in blocks if block != NULL_BLOCK]
            if set(returned) & set(self._free[group]):
                raise LocalProtocolError(f"group {group}: a block is released that is free already")
            self._free[group] += returned

    def used(self) -> int:
        """Blocks that are given out, over all groups."""
        total = sum(min(shard.num_blocks for shard in shards) for shards in self._shards.values())
        return total - sum(len(blocks) for blocks in self._free.values())

    def _wanted(self, shards: Sequence[Shard], num_tokens: int) -> tuple[int, int]:
        """Leading null blocks and the table's length for one group."""
        behind = min(blocks_let_go(shard, num_tokens) for shard in shards)
        return behind, max(table_length(shard, num_tokens) for shard in shards)
