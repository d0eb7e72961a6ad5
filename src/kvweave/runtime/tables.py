"""Block tables from the embedding engine, checked against its own layout before they are used or sent."""

from __future__ import annotations

from kvweave.core.block_table import NULL_BLOCK, BlockTables, name_tables
from kvweave.core.layout import EngineLayout
from kvweave.errors import BlockTableError


def checked_tables(side: str, layout: EngineLayout, blocks: BlockTables) -> dict[str, tuple[int, ...]]:
    """The tables by group as plain numbers; raises ``BlockTableError`` for a wrong group or an id out of range."""
    tables: dict[str, tuple[int, ...]] = {}
    for group, table in name_tables(side, layout.group_names(), blocks).items():
        limit = layout.num_blocks[group]
        wrong = table.blocks[(table.blocks < NULL_BLOCK) | (table.blocks >= limit)]
        if len(wrong):
            raise BlockTableError(f"{side} blocks, group {group}: block {wrong[0]} is not below num_blocks {limit}")
        tables[group] = tuple(table.blocks.tolist())
    return tables
