"""Compressed caches (DeepSeek V4): closed groups of r tokens as one entry each, and the group that is still open.

transformers keeps both in dicts of the attention's cache layer, under ``compressor`` and ``indexer``::

    compressed_kv   (1, entry, dim)     entry j once token (j+1)*r - 1 was computed
    buffer_kv,      (1, token, dim)     tokens of the open group, fewer than r: in the first slots of the array,
    buffer_gate                         the other slots are zero
    overlap_kv,     (1, r, dim)         what the last closed group lends to the next one, where groups overlap
    overlap_gate                        (r = 4); until a group was closed nothing: kv 0, gate minus infinity
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvweave.core.spec import CircularBufferSpec, MLAAttentionSpec, StatePart
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.engines.hf.tensors import to_array, to_tensor

_NEUTRAL = {"buffer.kv": 0.0, "buffer.gate": 0.0, "overlap.kv": 0.0, "overlap.gate": -math.inf}


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
        """All buffers, with the neutral value in unused slots."""
        for state in self.spec.states:
            whole = np.full([axis.size for axis in state.axes], _NEUTRAL[state.part], dtype=np.float32)
            tensor = _dict_of(held, state)[self.owner]
            if tensor is not None:
                whole[: tensor.shape[1]] = to_array(tensor[0])
            yield state.part, CapturedArray(0, whole)

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer's buffers; transformers takes an overlap of neutral values for no overlap."""
        for state in self.spec.states:
            rate = state.axes[0].size
            slots = rate if state.part.startswith("overlap") else captured.num_tokens % rate
            rows = captured.array(self.layer, state.part).data[:slots]
            _dict_of(held, state)[self.owner] = to_tensor(rows).unsqueeze(0)


def _dict_of(held: Any, state: StatePart) -> dict[str, torch.Tensor | None]:
    """transformers' dict for a part: ``buffer.kv`` lies in ``buffer_kv``."""
    found: dict[str, torch.Tensor | None] = getattr(held, state.part.replace(".", "_"))
    return found
