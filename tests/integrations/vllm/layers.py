"""Layers of a model as vLLM caches them, and their labelled content written in vLLM's own terms.

A layer gives a rank's vLLM spec, and writes the whole model's labels of some tokens into that rank's live tensor: by
the indexing of the attention backend's ``do_kv_cache_update``, by vLLM's own CPU kernel, by its weight loaders' split
of convolutions. Nothing here knows kvweave's boxes, strides or plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm import _custom_ops as vllm_ops
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_mixer2 import mamba_v2_sharded_weight_loader
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as MambaKind

from kvweave.integrations.vllm.layer_facts import LayerFacts
from tests.integrations.vllm.slots import state_slots, token_slots

Tokens = Any
WINDOWED = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True)
class Side:
    """One engine: sizes, memory order, and what its attention backend does with a page."""

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    interleave: int = 1
    block_size: int = 16
    kernel_block: int | None = None
    layout: str = "LBNHC"
    backend: str = "FLASH_ATTN"
    isa: str | None = None
    conv_order: str = "SD"
    num_blocks: int = 24
    hybrid_manager: bool = True

    def slots(self, table: Any, tokens: Tokens, rank: int, block_size: int, dcp_sharded: bool) -> Any:
        """Of these tokens the ones that a rank keeps in blocks of its own, and their slots, both as vLLM says."""
        slots = token_slots(table, tokens, block_size, *self._context(rank, dcp_sharded))
        there = slots >= block_size  # -1: another rank's; block 0 is vLLM's null block
        return tokens[there], slots[there]

    def entry_slots(self, table: Any, tokens: Tokens, rank: int, block_size: int, rate: int, dcp_sharded: bool) -> Any:
        """Of these tokens the compressed entries that they complete, and their slots, both as vLLM says."""
        slots = state_slots(table, tokens, block_size, rate, *self._context(rank, dcp_sharded))
        there = slots >= block_size // rate
        return tokens[there] // rate, slots[there]

    def _context(self, rank: int, dcp_sharded: bool) -> tuple[int, int, int]:
        return (self.dcp, rank % self.dcp, self.interleave) if dcp_sharded else (1, 0, 1)


def labels(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A number for every element, as bit patterns that are neither special nor the zero of fresh memory."""
    count = int(np.prod(shape))
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    limit = {1: 251, 2: 30011, 4: 2**30}[dtype.itemsize]
    numbers = (torch.arange(count, dtype=torch.int64) * 7 + seed * 104729) % limit + (1 << 23 if limit > 1 << 23 else 1)
    return numbers.to(bits).view(dtype).reshape(shape)


@dataclass(frozen=True)
class Heads:
    """Grouped-query attention: full, windowed or chunked by ``kind`` and ``extra``."""

    heads: int
    head_size: int = 32
    dtype: torch.dtype = torch.bfloat16
    kind: str = "FullAttentionSpec"
    extra: dict[str, Any] = field(default_factory=dict)
    quantised_row: int | None = None
    padded: int | None = None
    value_size: int | None = None

    def facts(self, side: Side) -> LayerFacts:
        return LayerFacts(side.backend, side.isa, attends_all=not set(WINDOWED) & set(self.extra))

    def spec(self, side: Side, rank: int) -> Any:
        local = max(1, self.heads // side.tp)
        values: dict[str, Any] = dict(self.extra)
        if side.backend == "B12X":
            content = local * self.head_size * self.dtype.itemsize
            values |= {"num_head_slots": 2, "state_content_bytes": content}
        if self.quantised_row is not None:
            mode = specs.get_kv_quant_mode("turboquant_k8v4")
            values |= {"state_content_bytes": self.quantised_row, "kv_quant_mode": mode}
        return getattr(specs, self.kind)(
            block_size=side.block_size, num_kv_heads=local, head_size=self.head_size, dtype=self.dtype,
            head_size_v=self.value_size, page_size_padded=self.padded, **values,
        )  # fmt: skip

    def whole(self, num_tokens: int, seed: int) -> Any:
        shape = (num_tokens, self.heads, self.head_size)
        if self.quantised_row is not None:
            return labels((num_tokens, self.heads, self.quantised_row), torch.uint8, seed)
        values = (*shape[:2], self.value_size or self.head_size)
        return labels(shape, self.dtype, seed), labels(values, self.dtype, seed + 1)

    def held(self, side: Side, rank: int) -> slice:
        """vLLM's QKVParallelLinear: contiguous heads, or one that neighbours share."""
        tp_rank = rank % side.tp
        if self.heads >= side.tp:
            count = self.heads // side.tp
            return slice(tp_rank * count, (tp_rank + 1) * count)
        head = tp_rank // (side.tp // self.heads)
        return slice(head, head + 1)

    def write(self, tensor: Any, side: Side, rank: int, table: Any, tokens: Tokens, whole: Any) -> None:
        tokens, slots = side.slots(table, tokens, rank, side.block_size, self.spec(side, rank).dcp_sharded)
        held = self.held(side, rank)
        block, place = torch.as_tensor(slots // tensor.shape[2]), torch.as_tensor(slots % tensor.shape[2])
        if self.quantised_row is not None:
            tensor.view(torch.uint8).transpose(1, 2)[block, place] = whole[tokens][:, held]
            return
        key, value = (part[tokens][:, held].contiguous() for part in whole)
        if side.backend == "CPU_ATTN":
            pages = tensor.view((tensor.shape[0], tensor.shape[1], tensor.shape[2] * 2, -1))
            key_cache, value_cache = pages.chunk(2, dim=2)
            vllm_ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, torch.as_tensor(slots), side.isa)
        elif side.backend == "B12X":
            key_cache, value_cache = tensor.unbind(1)
            key_cache[block, place], value_cache[block, place] = key.flatten(1), value.flatten(1)
        else:
            sizes = (self.head_size, self.value_size or self.head_size)
            key_cache, value_cache = tensor.transpose(1, 2).split(sizes, dim=-1)
            key_cache[block, place], value_cache[block, place] = key, value


@dataclass(frozen=True)
class Latent:
    """One vector per entry: MLA, its quantised rows, indexer keys, DeepSeek V4's compressed and windowed caches.

    ``values`` are the bytes of a row that lie before the scales of the page, None where a row is one piece; ``made`` is
    the spec where a layer of vLLM has made it.
    """

    size: int
    dtype: torch.dtype = torch.bfloat16
    rate: int = 1
    window: int | None = None
    row: int | None = None
    values: int | None = None
    backend: str = "TRITON_MLA"
    block_size: int | None = None
    cache_dtype: str | None = None
    alignment: int | None = None
    page_tokens: int | None = None
    made: Any = None

    def facts(self, side: Side) -> LayerFacts:
        return LayerFacts(self.backend, None, self.page_tokens)

    def spec(self, side: Side, rank: int) -> Any:
        if self.made is not None:
            return self.made
        kind = specs.MLAAttentionSpec if self.window is None else specs.SlidingWindowMLASpec
        values: dict[str, Any] = {} if self.window is None else {"sliding_window": self.window}
        if self.cache_dtype is not None:
            quantised = specs.get_kv_quant_mode(self.cache_dtype)
            values |= {"cache_dtype_str": self.cache_dtype, "kv_quant_mode": quantised}
        return kind(
            block_size=self.block_size or side.block_size, num_kv_heads=1, max_tp_shards=1, head_size=self.size,
            dtype=self.dtype, tokens_per_state=self.rate, state_content_bytes=self.row, alignment=self.alignment,
            **values,
        )  # fmt: skip

    def whole(self, num_tokens: int, seed: int) -> Any:
        dtype = torch.uint8 if self.row else self.dtype
        return labels((num_tokens // self.rate, self.row or self.size), dtype, seed)

    def write(self, tensor: Any, side: Side, rank: int, table: Any, tokens: Tokens, whole: Any) -> None:
        block_size, dcp_sharded = side.block_size, self.spec(side, rank).dcp_sharded
        if self.rate == 1:
            entries, slots = side.slots(table, tokens, rank, block_size, dcp_sharded)
        else:
            entries, slots = side.entry_slots(table, tokens, rank, block_size, self.rate, dcp_sharded)
        block, place = torch.as_tensor(slots // tensor.shape[2]), torch.as_tensor(slots % tensor.shape[2])
        if self.values is None:
            tensor.view(whole.dtype)[block, 0, place] = whole[entries]
            return
        page_entries = self.page_tokens // self.rate if self.page_tokens else tensor.shape[2]
        for entry, at, within in zip(entries.tolist(), block.tolist(), place.tolist(), strict=True):
            page = tensor.view(torch.uint8)[at, 0, within // page_entries * page_entries :][:page_entries].view(-1)
            inside, scales = within % page_entries, len(whole[entry]) - self.values
            page[inside * self.values :][: self.values] = whole[entry, : self.values]
            page[page_entries * self.values + inside * scales :][:scales] = whole[entry, self.values :]


@dataclass(frozen=True)
class State:
    """A recurrent layer. ``sections`` are the convolution's widths, ``group_section`` those cut by Mamba2's groups."""

    mamba_type: MambaKind
    sections: tuple[int, ...]
    taps: int
    recurrent: tuple[int, ...]
    shapes: Any
    groups: int | None = None
    dtype: torch.dtype = torch.bfloat16
    state_dtype: torch.dtype = torch.float32
    padded: int | None = None
    replicated: bool = False
    span: int = 4096
    key_major: bool = False

    def facts(self, side: Side) -> LayerFacts:
        return LayerFacts("MAMBA2_ATTN", key_major=self.key_major)

    def spec(self, side: Side, rank: int) -> Any:
        shapes = self.shapes(MambaStateShapeCalculator, 1 if self.replicated else side.tp)
        return specs.MambaSpec(
            block_size=self.span, shapes=tuple(shapes), dtypes=self.dtypes[: len(shapes)], mamba_type=self.mamba_type,
            page_size_padded=self.padded, tp_replicated=self.replicated,
        )  # fmt: skip

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (self.dtype, self.state_dtype) if self.sections else (self.state_dtype,)

    def whole(self, num_tokens: int, seed: int) -> Any:
        conv = labels((sum(self.sections), self.taps), self.dtype, seed) if self.sections else None
        return conv, labels(self.recurrent, self.state_dtype, seed + 1) if self.recurrent else None

    def write(self, tensor: Any, side: Side, rank: int, table: Any, tokens: Tokens, whole: Any) -> None:
        layer = _Mamba(self.spec(side, rank))
        MambaBase.bind_kv_cache(layer, tensor)
        states = list(layer.kv_cache)
        block = table[(len(tokens) and int(tokens[-1])) // self.span]
        if whole[0] is not None:
            conv = states.pop(0)
            conv = conv if side.conv_order == "DS" else conv.transpose(-1, -2)
            self._load(side, rank)(conv[block], whole[0])
        if whole[1] is not None:
            share = self.recurrent[0] // side.tp
            held = whole[1][rank % side.tp * share :][:share]
            if self.key_major:  # vLLM's CPU kernel: ssm_state.view(slots, head_num, k_dim, v_dim)
                states[0].view(len(states[0]), share, held.shape[2], held.shape[1])[block] = held.transpose(1, 2)
            else:
                states[0][block] = held

    def _load(self, side: Side, rank: int) -> Any:
        """vLLM's loader of a convolution's weights, which says which channels a rank holds."""
        if self.replicated:
            return mamba_v2_sharded_weight_loader([(sum(self.sections), 0, False)], 1, 0)
        tp, shares = side.tp, []
        for number, width in enumerate(self.sections):
            if self.groups is None or number == 0 or self.groups % tp == 0:
                shares.append((width, 0, False))
            else:
                size = width // self.groups
                extra = MambaStateShapeCalculator.extra_groups_for_head_shards(self.groups, tp) * size
                shares.append((width + extra, extra, self.groups == 1))
        return mamba_v2_sharded_weight_loader(shares, tp, rank % tp)


class _Mamba:
    """What ``MambaBase.bind_kv_cache`` asks of a layer."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self.kv_cache: tuple[Any, ...] = ()

    def get_state_shape(self) -> Any:
        return self._spec.shapes

    def get_state_dtype(self) -> Any:
        return self._spec.dtypes


@dataclass(frozen=True)
class Ring:
    """The open group's ring: one block per request. ``made`` is the spec where a layer of vLLM has made it."""

    rows: int
    size: int
    capacity: int = 8
    dtype: torch.dtype = torch.float32
    backend: str = "KPOOL_TAIL"
    made: Any = None

    def facts(self, side: Side) -> LayerFacts:
        return LayerFacts(self.backend)

    def spec(self, side: Side, rank: int) -> Any:
        if self.made is not None:
            return self.made
        return specs.CircularBufferSpec(
            block_size=self.capacity, num_kv_heads=self.rows, head_size=self.size, head_size_v=0, dtype=self.dtype,
            dcp_sharded=False,
        )  # fmt: skip

    def whole(self, num_tokens: int, seed: int) -> Any:
        return labels((self.rows, self.capacity, self.size), self.dtype, seed)

    def write(self, tensor: Any, side: Side, rank: int, table: Any, tokens: Tokens, whole: Any) -> None:
        tensor[table[0]] = whole


Layer = Heads | Latent | State | Ring
