"""Hypothesis strategies: models of every kind of layer, pairs of engines that serve them, and requests between these.

Sizes are small, shapes are not: tensor parallel sizes that do not divide one another, replicated heads, uneven stages,
context parallelism, every memory order, packing and padding. All draws are engines that can exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from kvweave.core.array import Axis, CacheArray, DType, TokenAxis
from kvweave.core.cache_config import CacheConfig, ConvOrder, KeyValuePacking, KVLayout
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    StatedArraysSpec,
    StatePart,
)
from kvweave.errors import LayoutError
from kvweave.testing.oracle import Oracle
from kvweave.testing.requests import Request, block_tables

TENSOR_SIZES = (1, 2, 3, 4, 6)
MOST_TOKENS = 75

_NUMBER = DType.of("bfloat16")
_STATE = DType.of("float32")


@dataclass(frozen=True, eq=False)
class Transfer:
    """Two engines of one model, what the oracle knows about them, and a request."""

    prefill: EngineLayout
    decode: EngineLayout
    oracle: Oracle
    request: Request

    def __repr__(self) -> str:
        groups = {group.name: [layer.spec for layer in group.layers] for group in self.prefill.model.groups}
        sides = [(layout.parallel, layout.cache) for layout in (self.prefill, self.decode)]
        return f"Transfer({groups}, prefill={sides[0]}, decode={sides[1]}, {self.request})"


def fitting_counts(*tensor_sizes: int, most: int = 12) -> list[int]:
    """Head counts that engines of all these tensor sizes can split or replicate.

    >>> fitting_counts(2, 3)
    [1, 6, 12]
    """
    return [n for n in range(1, most + 1) if all(n % size == 0 or size % n == 0 for size in tensor_sizes)]


@st.composite
def token_specs(draw: st.DrawFn, tensor_sizes: tuple[int, ...]) -> LayerSpec:
    """A spec of a layer with a token axis."""
    heads = draw(st.sampled_from(fitting_counts(*tensor_sizes)))
    size, value_size = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    reach = draw(st.integers(1, MOST_TOKENS))
    compressed = MLAAttentionSpec(size, _NUMBER, tokens_per_state=draw(st.sampled_from((2, 4, 24))))
    head = Axis("head", heads, heads)
    quantised = CacheArray("packed", (head, Axis("dim", size)), DType("packed", 5), TokenAxis())
    scales = CacheArray("scale", (head,), _STATE, TokenAxis())
    choices: tuple[LayerSpec, ...] = (
        FullAttentionSpec(heads, size, value_size, _NUMBER),
        SlidingWindowSpec(heads, size, reach, dtype=_NUMBER),
        ChunkedLocalAttentionSpec(heads, size, reach, dtype=_NUMBER),
        MLAAttentionSpec(4 * size, DType("packed", 5)),
        MLAAttentionSpec(size, _NUMBER, sliding_window=reach),
        compressed,
        StatedArraysSpec((quantised, scales)),
    )
    return draw(st.sampled_from(choices))


@st.composite
def state_specs(draw: st.DrawFn, tensor_sizes: tuple[int, ...]) -> LayerSpec:
    """A spec of a layer with a per-request state."""
    counts = fitting_counts(*tensor_sizes)
    groups, width, taps = draw(st.sampled_from(counts)), draw(st.integers(1, 3)), draw(st.integers(2, 4))
    heads = lcm(groups, *tensor_sizes)
    ring = tuple(StatePart(f"buffer.{name}", (Axis("slot", 4), Axis("dim", width)), _STATE) for name in ("kv", "gate"))
    choices: tuple[LayerSpec, ...] = (
        MambaSpec.mamba1(heads, width, taps, _NUMBER, _STATE),
        MambaSpec.mamba2(heads, width, groups, 2, taps, _NUMBER, _STATE),
        MambaSpec.gdn(groups, heads, 2, width, taps, _NUMBER, _STATE),
        MambaSpec.kda(heads, width, taps, _NUMBER, _NUMBER),
        CircularBufferSpec(ring),
    )
    return draw(st.sampled_from(choices))


@st.composite
def models(draw: st.DrawFn, tensor_sizes: tuple[int, ...]) -> ModelCache:
    """One to three groups, each of layers with tokens or of layers with states; kinds mix inside a group."""
    groups: list[KVCacheGroup] = []
    for number in range(draw(st.integers(1, 3))):
        specs = token_specs(tensor_sizes) if draw(st.booleans()) else state_specs(tensor_sizes)
        chosen = draw(st.lists(specs, min_size=1, max_size=2))
        layers = [CacheLayer(f"layer.{number}.{index}", index, spec) for index, spec in enumerate(chosen)]
        groups.append(KVCacheGroup(f"group.{number}", tuple(layers)))
    return ModelCache("drawn", 3, tuple(groups))


@st.composite
def parallel_configs(draw: st.DrawFn, tensor_size: int, num_layers: int) -> ParallelConfig:
    """Sizes around a tensor parallel size: stages, stated or not, and context parallelism."""
    pp = draw(st.integers(1, 3))
    edges = sorted(draw(st.lists(st.integers(0, num_layers), min_size=pp - 1, max_size=pp - 1)))
    stated = tuple(stop - start for start, stop in zip([0, *edges], [*edges, num_layers], strict=True))
    pcp = draw(st.sampled_from((1, 1, 2)))
    dcp = draw(st.sampled_from([d for d in (1, 1, 2, 3) if (tensor_size % d == 0 if pcp == 1 else d in (1, pcp))]))
    return ParallelConfig(
        tp=tensor_size, pp=pp, pcp=pcp, dcp=dcp, interleave=draw(st.sampled_from((1, 2, 4))),
        stage_layers=draw(st.sampled_from((None, stated))),
    )  # fmt: skip


@st.composite
def cache_configs(draw: st.DrawFn) -> CacheConfig:
    """Block sizes that need not divide one another, every memory order, packing and padding."""
    kernel = draw(st.sampled_from((4, 8)))
    block = kernel * draw(st.integers(1, 4))
    return CacheConfig(
        block_size=block,
        layout=draw(st.sampled_from(KVLayout)),
        num_blocks=MOST_TOKENS // block + 5,
        kernel_block_size=draw(st.sampled_from((None, kernel))),
        packing=draw(st.sampled_from(KeyValuePacking)),
        conv_order=draw(st.sampled_from(ConvOrder)),
        page_padding=draw(st.sampled_from((0, 0, 7))),
        speculative_blocks=draw(st.integers(0, 2)),
    )


@st.composite
def engine_pairs(draw: st.DrawFn) -> tuple[EngineLayout, EngineLayout]:
    """A prefill and a decode engine of one model."""
    sizes = draw(st.tuples(st.sampled_from(TENSOR_SIZES), st.sampled_from(TENSOR_SIZES)))
    model = draw(models(sizes))
    stated = [(draw(parallel_configs(size, model.num_layers)), draw(cache_configs())) for size in sizes]
    try:
        prefill, decode = (EngineLayout.build(model, parallel, cache) for parallel, cache in stated)
    except LayoutError:
        reject()  # heads without replicas under dcp, pages of K and V of unequal size
    return prefill, decode


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """Two engines and a request between them."""
    prefill, decode = draw(engine_pairs())
    oracle = Oracle(prefill, decode)
    num_tokens = draw(st.integers(1, MOST_TOKENS))
    start_token = draw(st.integers(0, num_tokens))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    source, target = (
        block_tables(images, num_tokens, random, let_go=draw(st.sampled_from((0.0, 0.5, 1.0))), spare=2)
        for images in oracle.images
    )
    salt, stripes = draw(st.integers(0, 20)), draw(st.integers(1, 6))
    return Transfer(prefill, decode, oracle, Request(num_tokens, start_token, source, target, salt, stripes))
