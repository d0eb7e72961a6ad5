"""DeepSeek V4's caches by vLLM's own layer classes: their specs, their backends, and the backends' own page sizes.

A layer ``i`` keeps, with its rate::

    swa_cache               windowed latents, blocks of 64 tokens
    mla_attn                compressed latents (rate 4 or 128), 584 bytes each: 576 of values, scales behind the page's
    compressor.state_cache  keys and scores of the open group, windowed, blocks of 4 (rate 4) or 8 (rate 128)
    indexer.k_cache         rate 4 only: compressed indexer keys, 128 bytes and a scale

V4.1 keeps the open group in a ring of one block instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from vllm.models.deepseek_v4.attention import DeepseekV4Attention, DeepseekV4IndexerCache
from vllm.models.deepseek_v4.common.ops import cache_utils
from vllm.models.deepseek_v4.compressor import CompressorStateCache
from vllm.models.deepseek_v41.compressor import CompressorStateCache as RingCache
from vllm.v1.attention.backends.mla.sparse_swa import DeepseekV4SWACache
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from kvweave.integrations.vllm.layer_facts import _facts
from tests.integrations.vllm.interpreted import interpreted
from tests.integrations.vllm.layers import Latent, Layer, Ring, Side
from tests.integrations.vllm.slots import token_slots

BLOCK = 256
WINDOW = 128
HEAD = 512
INDEXER_HEAD = 132
_CACHE = SimpleNamespace(block_size=BLOCK, cache_dtype="fp8_ds_mla")
_ENGINE = SimpleNamespace(cache_config=_CACHE)


def deepseek_v4(rates: tuple[int, ...] = (4, 128)) -> dict[str, Layer]:
    """The caches of as many layers as there are rates."""
    model: dict[str, Layer] = {}
    for number, rate in enumerate(rates):
        name = f"model.layers.{number}.attn"
        model[f"{name}.swa_cache"] = _latent(_window(), window=WINDOW, row=584, values=576)
        model[f"{name}.mla_attn"] = _latent(_compressed(rate), rate=rate, row=584, values=576)
        overlap = 2 if rate == 4 else 1
        state = _built(CompressorStateCache, 2 * overlap * HEAD, torch.float32, rate)
        model[f"{name}.compressor.state_cache"] = _latent(state, dtype=torch.float32, window=overlap * rate)
        if rate == 4:
            keys = _built(DeepseekV4IndexerCache, INDEXER_HEAD, torch.uint8, cache_config=_CACHE, compress_ratio=rate)
            model[f"{name}.indexer.k_cache"] = _latent(keys, rate=rate, values=128)
    return model


def open_group_ring() -> Ring:
    """V4.1's ring of the open group's keys and scores."""
    layer = _built(RingCache, 2 * 32, torch.float32)
    spec = layer.get_kv_cache_spec(_ENGINE)
    return Ring(
        spec.num_kv_heads, spec.head_size, spec.block_size, made=spec, backend=layer.get_attn_backend().get_name()
    )


@dataclass(frozen=True)
class WrittenByVllm(Latent):
    """The windowed latents of the last tokens, quantised and put into their pages by vLLM's own kernel."""

    last: int = 10

    def whole(self, num_tokens: int, seed: int) -> Any:
        return torch.randn(num_tokens, HEAD, generator=torch.Generator().manual_seed(seed)).bfloat16()

    def write(self, tensor: Any, side: Side, rank: int, table: Any, tokens: Any, whole: Any) -> None:
        tokens = tokens[-self.last :]
        slots = token_slots(table, tokens, side.block_size)
        pages = tensor.squeeze(1).flatten(1)
        with interpreted(cache_utils, cache_utils, "quantize_and_insert_k_kernel"):
            cache_utils.quantize_and_insert_k_cache(whole[tokens], pages, torch.as_tensor(slots), side.block_size)


def windowed_latents() -> WrittenByVllm:
    """DeepSeek V4's windowed latents with vLLM's own writer."""
    made = _latent(_window(), window=WINDOW, row=584, values=576)
    return WrittenByVllm(**{field.name: getattr(made, field.name) for field in fields(made)})


def _latent(layer: Any, **values: Any) -> Latent:
    spec = layer.get_kv_cache_spec(_ENGINE)
    facts = _facts(layer, spec)
    usual = {"dtype": torch.uint8, "backend": facts.backend, "page_tokens": facts.page_tokens}
    return Latent(spec.head_size, block_size=spec.block_size, made=spec, **usual | values)


def _window() -> Any:
    return _built(DeepseekV4SWACache, HEAD, WINDOW, torch.uint8, cache_config=_CACHE)


def _compressed(rate: int) -> Any:
    """The attention layer as far as its cache goes; the rest of it needs a GPU."""
    known = SimpleNamespace(
        compress_ratio=rate, kv_cache_dtype=_CACHE.cache_dtype, head_dim=HEAD, kv_cache_torch_dtype=torch.uint8,
        get_attn_backend=AttentionBackendEnum["FLASHMLA_SPARSE_DSV4"].get_class,
    )  # fmt: skip
    known.get_kv_cache_spec = lambda engine: DeepseekV4Attention.get_kv_cache_spec(known, engine)
    return known


def _built(kind: Callable[..., Any], *sizes: Any, **values: Any) -> Any:
    """A layer of vLLM's, which registers itself with the engine's configuration of the moment."""
    engine = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={}), num_speculative_tokens=0)
    with patch("vllm.config.vllm._current_vllm_config", engine):
        return kind(*sizes, prefix="layer", **values)
