"""Block tables: which logical blocks hold a request, one table per group of layers.

Position n of a table holds the rank's local entries ``n * block_entries`` and following. ``NULL_BLOCK`` stands where a
window has let go of a block (vLLM's null block). A state's table names its running block last, before the scratch
blocks of speculation.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvweave.errors import BlockTableError

NULL_BLOCK = -1
_LARGEST_ID = np.iinfo(np.int64).max

Blocks = Sequence[int] | npt.NDArray[np.int64]
"""One table: block ids in the order of the request's positions."""

BlockTables = Mapping[str, Blocks] | Sequence[Blocks] | Blocks


@dataclass(frozen=True, eq=False)
class BlockTable:
    """One group's table on one side, checked. ``side`` and ``group`` are for messages."""

    side: str
    group: str
    blocks: npt.NDArray[np.int64]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.side} blocks, group {self.group}"

    def require(self, length: int) -> None:
        """Raises ``BlockTableError`` if the table has fewer blocks."""
        if length > len(self.blocks):
            raise BlockTableError(
                f"{self.name}: {len(self.blocks)} blocks, but the tokens need {length}; give the whole table"
            )

    def lookup(self, positions: npt.NDArray[np.int64], num_blocks: int) -> npt.NDArray[np.int64]:
        """The block ids at these positions of the table; raises ``BlockTableError`` for an id out of range."""
        if not len(positions):
            return positions
        found = self.blocks[positions]
        if int(found.min()) < NULL_BLOCK or int(found.max()) >= num_blocks:
            wrong = found[(found < NULL_BLOCK) | (found >= num_blocks)][0]
            raise BlockTableError(
                f"{self.name}: block {wrong} is not below num_blocks {num_blocks}; give ids of this engine"
            )
        return found

    def running_block(self, scratch_blocks: int, num_blocks: int) -> int:
        """A state's block: the last one before the scratch blocks."""
        position = len(self.blocks) - 1 - scratch_blocks
        if position < 0:
            raise BlockTableError(
                f"{self.name}: {len(self.blocks)} blocks, of which {scratch_blocks} are scratch; "
                "a state needs one running block"
            )
        block = int(self.lookup(np.array([position], dtype=np.int64), num_blocks)[0])
        if block == NULL_BLOCK:
            raise BlockTableError(f"{self.name}: the running block is null; give its id")
        return block


def name_tables(side: str, groups: Sequence[str], tables: BlockTables) -> dict[str, BlockTable]:
    """The tables by group name. Raises ``BlockTableError`` for a missing, unknown or malformed table."""
    if isinstance(tables, Mapping):
        named = dict(tables)
    else:
        if not isinstance(tables, Sequence | np.ndarray) or (isinstance(tables, np.ndarray) and tables.ndim == 0):
            raise BlockTableError(f"{side} blocks: {tables!r} is no table; give one sequence of block ids per group")
        nested: Sequence[object] = [tables] if len(groups) == 1 and _is_flat(tables) else list(tables)
        if len(nested) != len(groups):
            raise BlockTableError(
                f"{side} blocks: {len(nested)} tables for the groups {', '.join(groups)}; give one table per group"
            )
        named = dict(zip(groups, nested, strict=True))  # type: ignore[arg-type]
    if named.keys() != set(groups):
        unknown = sorted(str(name) for name in set(named) - set(groups))
        missing = [group for group in groups if group not in named]
        raise BlockTableError(
            f"{side} blocks: unknown groups {unknown}, missing groups {missing}; "
            f"the engine's groups are {', '.join(groups)}"
        )
    return {group: BlockTable(side, group, _ids(side, group, named[group])) for group in groups}


def _is_flat(tables: object) -> bool:
    if isinstance(tables, np.ndarray):
        return tables.ndim == 1
    return isinstance(tables, Sequence) and not (len(tables) and isinstance(tables[0], Sequence | np.ndarray))


def _ids(side: str, group: str, table: object) -> npt.NDArray[np.int64]:
    try:
        ids = _whole_numbers(table)
    except ValueError:
        raise BlockTableError(
            f"{side} blocks, group {group}: rows of different lengths, wanted one dimension of whole numbers"
        ) from None
    if ids.size == 0:
        return np.zeros(0, dtype=np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise BlockTableError(
            f"{side} blocks, group {group}: {ids.ndim} dimensions of {ids.dtype}, wanted one dimension of whole numbers"
        )
    if ids.dtype != np.int64 and int(ids.max()) > _LARGEST_ID:
        raise BlockTableError(f"{side} blocks, group {group}: block {ids.max()} is no id; give ids below num_blocks")
    ids = ids.astype(np.int64, copy=False)
    _check_distinct(side, group, ids)
    return ids


def _whole_numbers(table: object) -> npt.NDArray[Any]:
    """What numpy makes of a table; of whole numbers in a list or a tuple in two thirds of its time."""
    if isinstance(table, list | tuple) and table and not isinstance(table[0], bool):
        with suppress(TypeError, OverflowError):
            return np.frombuffer(array("q", table), np.int64)
    return np.asarray(table)


def _check_distinct(side: str, group: str, ids: npt.NDArray[np.int64]) -> None:
    """One block never stands for two positions: it would be read as, or overwritten by, another one's tokens."""
    ordered = np.sort(ids)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    repeated = repeated[repeated != NULL_BLOCK]
    if len(repeated):
        raise BlockTableError(
            f"{side} blocks, group {group}: block {repeated[0]} appears twice; each position needs a block of its own "
            f"(and {NULL_BLOCK} where it has none)"
        )
