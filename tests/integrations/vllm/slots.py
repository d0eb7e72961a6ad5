"""vLLM's own slot mapping, by its Triton kernels as they are.

On a CPU vLLM replaces the kernel of ``BlockTable`` by one that knows no context parallelism, and has none for
compressed caches, so the real ones are interpreted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backends.mla import compressor_utils
from vllm.v1.worker import block_table

from tests.integrations.vllm.interpreted import interpreted


def token_slots(table: Any, tokens: Any, block_size: int, dcp: int = 1, dcp_rank: int = 0, interleave: int = 1) -> Any:
    """The slot of each of these tokens (block id x block size + place in the block); -1 where a rank keeps none."""
    with interpreted(block_table, block_table.ComputeSlotMappingKernel, "kernel"):
        rows = _block_table(table, len(tokens), block_size, dcp, dcp_rank, interleave)
        bounds = torch.tensor([0, len(tokens)], dtype=torch.int32)
        rows.compute_slot_mapping(1, bounds, torch.as_tensor(tokens, dtype=torch.int64))
        return rows.slot_mapping.gpu[: len(tokens)].clone().numpy()


def state_slots(
    table: Any, tokens: Any, block_size: int, rate: int, dcp: int = 1, dcp_rank: int = 0, interleave: int = 1
) -> Any:
    """The slot, in compressed states, of the state that each of these tokens completes; -1 where it completes none.

    The tokens follow one another; ``block_size`` counts tokens.
    """
    slots = token_slots(table, tokens, block_size, dcp, dcp_rank, interleave)
    with interpreted(compressor_utils, compressor_utils.CompressedSlotMappingKernel, "kernel"):
        found = compressor_utils.get_compressed_slot_mapping(
            len(tokens), torch.as_tensor(slots), torch.tensor([0, len(tokens)], dtype=torch.int32),
            torch.tensor([int(tokens[-1]) + 1], dtype=torch.int32),
            torch.as_tensor(np.asarray(table), dtype=torch.int32)[None], block_size // rate, rate,
            dcp_world_size=dcp, cp_interleave=interleave,
        )  # fmt: skip
    return found.numpy()


def _block_table(table: Any, num_tokens: int, block_size: int, dcp: int, dcp_rank: int, interleave: int) -> Any:
    made = block_table.BlockTable(
        block_size, 1, len(table), num_tokens, False, torch.device("cpu"), interleave,
        block_table.SlotMappingMode.TOKEN_TO_KV_SLOT,
    )  # fmt: skip
    made.dcp_world_size, made.dcp_rank = dcp, dcp_rank
    made.add_row([int(block) for block in table], 0)
    made.commit_block_table(1)
    return made
