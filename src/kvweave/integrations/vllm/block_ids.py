"""vLLM's block ids of a request, per cache group, and kvweave's block tables: one into the other.

==========================  ==========================================================================================
group                       its table
==========================  ==========================================================================================
attention, latents          the ids as they are; vLLM's null block, id 0, becomes ``NULL_BLOCK``
recurrent state             the one block that holds the state after the transferred tokens. It stands at position
                            ``(tokens - 1) // block_size`` (vLLM's ``preprocess_mamba``): 0 while a block spans the
                            whole request, else behind nulls and snapshots, before the scratch blocks of speculation
ring of an open group       its one block
==========================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_cache_interface import CircularBufferSpec, MambaSpec, iter_layer_specs

from kvweave.core.block_table import NULL_BLOCK
from kvweave.errors import BlockTableError
from kvweave.integrations.vllm.layout import group_name

VLLM_NULL_BLOCK = 0
"""The id of vLLM's null block: the first one that ``BlockPool`` takes off its free list."""

Tables = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class _Group:
    """A cache group's table: ``state_tokens`` are the tokens that one state block spans, 0 where entries are tokens."""

    name: str
    state_tokens: int
    is_ring: bool


@dataclass(frozen=True, slots=True)
class BlockIds:
    """Translates the block ids of one engine's requests."""

    groups: tuple[_Group, ...]

    @staticmethod
    def of(kv_cache_config: Any) -> BlockIds:
        """For vLLM's cache configuration, a worker's or the scheduler's."""
        return BlockIds(
            tuple(_group(number, group.kv_cache_spec) for number, group in enumerate(kv_cache_config.kv_cache_groups))
        )

    def tables(self, block_ids: Sequence[Sequence[int]], num_tokens: int) -> Tables:
        """The tables of a request of which ``num_tokens`` tokens are transferred.

        ``block_ids`` is what ``request_finished_all_groups`` gets and ``KVCacheBlocks.get_block_ids()`` returns. Raises
        ``BlockTableError`` for another number of groups, or where a state has no block.
        """
        self._require_all(block_ids)
        return {
            group.name: _table(group, np.asarray(ids, dtype=np.int64), num_tokens)
            for group, ids in zip(self.groups, block_ids, strict=True)
        }

    def chunk_tables(self, block_ids: Sequence[Sequence[int]]) -> Tables:
        """The tables of a request in the midst of its prompt; those of states are empty, these move at its end."""
        self._require_all(block_ids)
        nothing = np.zeros(0, dtype=np.int64)
        return {
            group.name: nothing if group.state_tokens else _table(group, np.asarray(ids, dtype=np.int64), 0)
            for group, ids in zip(self.groups, block_ids, strict=True)
        }

    def _require_all(self, block_ids: Sequence[Sequence[int]]) -> None:
        if len(block_ids) != len(self.groups):
            raise BlockTableError(
                f"block ids of {len(block_ids)} groups, the cache configuration has {len(self.groups)}; give all"
            )


def vllm_ids(table: npt.NDArray[np.int64]) -> list[int]:
    """A table's blocks as vLLM numbers them."""
    return [VLLM_NULL_BLOCK if block == NULL_BLOCK else block for block in table.tolist()]


def _group(number: int, spec: Any) -> _Group:
    inner = list(iter_layer_specs(spec))
    is_state = all(isinstance(layer, MambaSpec) for layer in inner)
    is_ring = all(isinstance(layer, CircularBufferSpec) for layer in inner)
    return _Group(group_name(number), spec.block_size if is_state else 0, is_ring)


def _table(group: _Group, ids: npt.NDArray[np.int64], num_tokens: int) -> npt.NDArray[np.int64]:
    if group.state_tokens:
        return _running_block(group, ids, num_tokens)
    if group.is_ring:
        return ids[:1]
    return np.where(ids == VLLM_NULL_BLOCK, NULL_BLOCK, ids)


def _running_block(group: _Group, ids: npt.NDArray[np.int64], num_tokens: int) -> npt.NDArray[np.int64]:
    position = max(num_tokens - 1, 0) // group.state_tokens
    if position >= len(ids) or ids[position] == VLLM_NULL_BLOCK:
        shown = "no block" if position >= len(ids) else "the null block"
        raise BlockTableError(
            f"{group.name}: the state after {num_tokens} tokens stands at position {position} of {len(ids)}, where "
            f"there is {shown}; offer a request while its last state is there"
        )
    return ids[position : position + 1]
