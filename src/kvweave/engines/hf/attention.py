"""Attention caches: what keeps one row per token, in transformers' ``keys`` and ``values``.

transformers keeps (1, head, token, dim). Layers that slide (windowed and chunked ones alike) hold the last w - 1
tokens and count how many they have seen; where fewer are needed, as at the start of a chunk, the rest is zeros,
which the attention mask hides::

    attention         keys -> k          values -> v
    MLA               keys -> latent     values -> rotated key part, behind it in the same array (as vLLM caches it)
    shared key-value  keys -> latent     values are the keys (DeepSeek V4)
    sparse indexer    indexer_keys       apart from keys and values (DeepSeek V3.2)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kvweave.core.array import Reach
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.engines.hf.tensors import heads_first, to_array, to_tensor


@dataclass(frozen=True, slots=True)
class AttentionBridge:
    """``k`` and ``v`` over (token, head, dim)."""

    layer: str
    reach: Reach

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """The tokens that transformers' layer still holds."""
        yield "k", _last_tokens(held, held.keys[0].transpose(0, 1))
        yield "v", _last_tokens(held, held.values[0].transpose(0, 1))

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer from the tokens that are still needed."""
        keys, values = (_needed(captured, self.layer, part, self.reach) for part in ("k", "v"))
        _fill(held, keys, values, captured.num_tokens)


@dataclass(frozen=True, slots=True)
class LatentBridge:
    """MLA's ``latent`` over (token, dim): the normed latent of ``rank`` elements, then the rotated key part."""

    layer: str
    reach: Reach
    rank: int

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """All tokens; transformers keeps the latent as keys and the rotated part as values, of one head."""
        yield "latent", _last_tokens(held, torch.cat([held.keys[0, 0], held.values[0, 0]], dim=-1))

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer."""
        rows = _needed(captured, self.layer, "latent", self.reach).unsqueeze(1)
        _fill(held, rows[..., : self.rank], rows[..., self.rank :], captured.num_tokens)


@dataclass(frozen=True, slots=True)
class SharedKeyValueBridge:
    """DeepSeek V4's windowed ``latent`` over (token, dim), read both as key and as value."""

    layer: str
    reach: Reach

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """The tokens that transformers' layer still holds."""
        yield "latent", _last_tokens(held, held.keys[0, 0])

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer from the tokens that are still needed."""
        rows = _needed(captured, self.layer, "latent", self.reach).unsqueeze(1)
        _fill(held, rows, rows, captured.num_tokens)


@dataclass(frozen=True, slots=True)
class IndexerBridge:
    """The sparse-attention indexer's keys over (token, dim), beside the attention of the same decoder layer."""

    layer: str
    part: str
    reach: Reach

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """All tokens."""
        yield self.part, CapturedArray(0, to_array(held.indexer_keys[0]))

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer's indexer."""
        held.update_indexer(_needed(captured, self.layer, self.part, self.reach).unsqueeze(0))


def _last_tokens(held: Any, rows: torch.Tensor) -> CapturedArray:
    return CapturedArray(held.get_seq_length() - len(rows), to_array(rows))


def _needed(captured: CapturedCache, layer: str, part: str, reach: Reach) -> torch.Tensor:
    """(token, *axes): what computing the next token looks at."""
    first = reach.first_needed(captured.num_tokens)
    return to_tensor(captured.array(layer, part).rows(first, captured.num_tokens))


def _fill(held: Any, keys: torch.Tensor, values: torch.Tensor, num_tokens: int) -> None:
    """Puts (token, head, dim) rows, which end at token ``num_tokens``, into a fresh layer."""
    expected = min(num_tokens, held.sliding_window - 1) if held.is_sliding else num_tokens
    padding = expected - len(keys)
    held.update(heads_first(keys, padding), heads_first(values, padding))
    if held.is_sliding:
        held.cumulative_length = num_tokens
