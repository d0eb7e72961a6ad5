"""Compressed caches (DeepSeek V4): closed groups of r tokens as one entry each, and the group that is still open.

transformers keeps both in dicts of the attention's cache layer, under ``compressor`` and ``indexer``::

    compressed_kv   (1, entry, dim)     entry j once token (j+1)*r - 1 was computed
    buffer_kv,      (1, token, dim)     tokens of the open group, fewer than r: in the first slots of the array,
    buffer_gate                         the other slots are zero
    overlap_kv,     (1, r, dim)         what the last closed group lends to the next one, where groups overlap
    overlap_gate                        (r = 4); nothing, and zeros in the array, until a group was closed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvweave.core.spec import CircularBufferSpec, MLAAttentionSpec, StatePart
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.engines.hf.tensors import to_array, to_tensor


@dataclass(frozen=True, slots=True)
class CompressedBridge:
    """The entries of closed groups; ``owner`` is the key in transformers' dicts."""

    layer: str
    owner: str
    spec: MLAAttentionSpec

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """All entries."""
        yield self.spec.part, CapturedArray(0, to_array(held.compressed_kv[self.owner][0]))

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer's entries."""
        entries = captured.num_tokens // self.spec.tokens_per_state
        rows = captured.array(self.layer, self.spec.part).rows(0, entries)
        held.update_compressor_states(self.owner, to_tensor(rows).unsqueeze(0))


@dataclass(frozen=True, slots=True)
class OpenGroupBridge:
    """The buffers of the open group, each array with r slots; ``owner`` is the key in transformers' dicts."""

    layer: str
    owner: str
    spec: CircularBufferSpec

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """All buffers, unused slots zero."""
        for state in self.spec.states:
            yield state.part, CapturedArray(0, _padded(_dict_of(held, state)[self.owner], state))

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer's buffers."""
        for state in self.spec.states:
            slots = _used_slots(state, captured.num_tokens)
            if slots is not None:
                rows = captured.array(self.layer, state.part).data[:slots]
                _dict_of(held, state)[self.owner] = to_tensor(rows).unsqueeze(0)


def _dict_of(held: Any, state: StatePart) -> dict[str, torch.Tensor | None]:
    """transformers' dict for a part: ``buffer.kv`` lies in ``buffer_kv``."""
    found: dict[str, torch.Tensor | None] = getattr(held, state.part.replace(".", "_"))
    return found


def _used_slots(state: StatePart, num_tokens: int) -> int | None:
    """How many slots hold something after ``num_tokens``; None where transformers keeps nothing at all yet."""
    rate = state.axes[0].size
    if state.part.startswith("overlap"):
        return rate if num_tokens >= rate else None
    return num_tokens % rate


def _padded(tensor: torch.Tensor | None, state: StatePart) -> NDArray[Any]:
    whole = np.zeros([axis.size for axis in state.axes], dtype=np.float32)
    if tensor is not None:
        whole[: tensor.shape[1]] = to_array(tensor[0])
    return whole
