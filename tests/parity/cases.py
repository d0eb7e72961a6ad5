"""What is compared: kinds of cache, each as kvweave describes it and as vLLM does, and pairs of tensor parallel sizes.

Sizes are small, except where a known figure needs the real ones (2048 + 2 * groups * 128 conv channels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import kvweave.core.spec as kv
from kvweave.core.array import Axis, DType

HALF, FULL = DType.of("bfloat16"), DType.of("float32")
Groups = tuple[kv.LayerSpec | kv.UniformTypeKVCacheSpecs, ...]
Shapes = Callable[[Any, int], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Case:
    """One model: its groups, the head count vLLM's topology gets, and the state shapes that vLLM gives it."""

    name: str
    groups: Groups
    num_kv_heads: int = 1
    is_mla: bool = False
    mamba_type: str = "MAMBA2"
    state_shapes: Shapes | None = None

    def fits(self, tp: int) -> bool:
        """Whether an engine of that size can exist: every axis divides, one way or the other."""
        return all(units % tp == 0 or tp % units == 0 for units in self._units())

    def vllm_supports(self, tp: int) -> bool:
        """vLLM's own conditions on a state's split: only Mamba2's groups may be fewer than tp."""
        return self.fits(tp) and all(
            units >= tp for units in self._units(kinds=kv.MambaSpec, skip=("conv.b", "conv.c"))
        )

    def _units(self, kinds: type = object, skip: tuple[str, ...] = ()) -> Iterator[int]:
        for spec in layer_specs(self.groups):
            for array in spec.arrays() if isinstance(spec, kinds) else ():
                yield from (axis.units for axis in array.axes if axis.units and array.part not in skip)


def layer_specs(groups: Groups) -> Iterator[kv.LayerSpec]:
    """Every layer's own spec."""
    for group in groups:
        yield from group.kv_cache_specs.values() if isinstance(group, kv.UniformTypeKVCacheSpecs) else (group,)


def gqa(heads: int) -> kv.FullAttentionSpec:
    return kv.FullAttentionSpec(heads, head_size=4, dtype=HALF)


LATENT = kv.MLAAttentionSpec(12, dtype=HALF)
RING = kv.CircularBufferSpec((kv.StatePart("buffer.kv", (Axis("slot", 4), Axis("dim", 8)), FULL),))
DEEPSEEK_V4 = (
    kv.UniformTypeKVCacheSpecs({"a.0": kv.MLAAttentionSpec(16, HALF, sliding_window=8)}),
    kv.UniformTypeKVCacheSpecs(
        {
            "c.0": kv.MLAAttentionSpec(16, HALF, 4),
            "i.0": kv.MLAAttentionSpec(8, HALF, 4),
            "c.1": kv.MLAAttentionSpec(16, HALF, 128),
        }
    ),
    RING,
)


def mamba1(channels: int = 64) -> kv.MambaSpec:
    return kv.MambaSpec.mamba1(channels, state_size=4, conv_kernel=4, dtype=HALF, ssm_dtype=FULL)


def mamba2(groups: int, heads: int = 16, head_size: int = 4, state_size: int = 8) -> kv.MambaSpec:
    return kv.MambaSpec.mamba2(heads, head_size, groups, state_size, conv_kernel=4, dtype=HALF, ssm_dtype=FULL)


def mamba2_case(
    groups: int, attention: kv.LayerSpec, heads: int, sizes: tuple[int, int, int] = (16, 4, 8), name: str = ""
) -> Case:
    num_heads, head_size, state_size = sizes

    def shapes(calculator: Any, tp: int) -> tuple[tuple[int, ...], ...]:
        return calculator.mamba2_state_shape(tp, num_heads * head_size, groups, num_heads, head_size, state_size, 4)

    is_mla = isinstance(attention, kv.MLAAttentionSpec)
    specs = (attention, mamba2(groups, *sizes))
    return Case(
        name or f"{'MLA' if is_mla else 'GQA'} + Mamba2 with {groups} groups", specs, heads, is_mla, "MAMBA2", shapes
    )


def gdn_case(
    name: str, attention: kv.LayerSpec, heads: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> Case:
    def shapes(calculator: Any, tp: int) -> tuple[tuple[int, ...], ...]:
        return calculator.gated_delta_net_state_shape(tp, key_heads, value_heads, key_dim, value_dim, 4)

    state = kv.MambaSpec.gdn(key_heads, value_heads, key_dim, value_dim, 4, HALF, FULL)
    is_mla = isinstance(attention, kv.MLAAttentionSpec)
    return Case(name, (attention, state), heads, is_mla, "GDN_ATTN", shapes)


def mamba1_case() -> Case:
    def shapes(calculator: Any, tp: int) -> tuple[tuple[int, ...], ...]:
        return calculator.mamba1_state_shape(tp, 64, 4, 4)

    return Case("GQA + Mamba1", (gqa(4), mamba1()), 4, mamba_type="MAMBA1", state_shapes=shapes)


ATTENTION = (
    *(Case(f"GQA with {heads} heads", (gqa(heads),), heads) for heads in (1, 2, 3, 4, 6, 8, 16)),
    Case("full and sliding", (gqa(4), kv.SlidingWindowSpec(4, 4, sliding_window=8, dtype=HALF)), 4),
    Case("full and chunked", (gqa(4), kv.ChunkedLocalAttentionSpec(4, 4, attention_chunk_size=8, dtype=HALF)), 4),
    Case("uniform GQA", (kv.UniformTypeKVCacheSpecs({"a": gqa(8), "b": kv.FullAttentionSpec(8, 8, dtype=HALF)}),), 8),
    Case("MLA", (LATENT,), 128, is_mla=True),
    Case(
        "MLA with indexer", (kv.UniformTypeKVCacheSpecs({"a": LATENT, "i": kv.MLAAttentionSpec(8, part="indexer")}),),
        128, is_mla=True,
    ),
    Case("DeepSeek-V4", DEEPSEEK_V4, 1, is_mla=True),
    Case("GQA and MLA draft", (gqa(4), LATENT), 4),
    Case("two head counts", (kv.SlidingWindowSpec(8, 4, sliding_window=8, dtype=HALF), gqa(2)), 8),
)  # fmt: skip

HYBRID = (
    mamba1_case(),
    *(mamba2_case(groups, gqa(4), 4) for groups in (1, 2, 4, 8)),
    mamba2_case(8, gqa(1), 1, name="one head + Mamba2 with 8 groups"),
    mamba2_case(8, LATENT, 16),
    gdn_case("GQA + GDN", gqa(2), 2, 16, 32, 4, 4),
    gdn_case("MLA + KDA", LATENT, 16, 16, 16, 4, 4),
)

REAL_CONV = tuple(
    mamba2_case(groups, gqa(8), 8, sizes=(32, 64, 128), name=f"2048 channels + Mamba2 with {groups} groups")
    for groups in (1, 4)
)

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
PAIRS = tuple((prefill, decode) for prefill in SIZES for decode in SIZES if not (prefill % decode and decode % prefill))


def pairs_of(case: Case, sizes: tuple[int, ...] = SIZES) -> tuple[tuple[int, int], ...]:
    """The pairs (prefill tp, decode tp) that vLLM supports for a case."""
    return tuple(pair for pair in PAIRS if all(tp in sizes and case.vllm_supports(tp) for tp in pair))


def pair_text(pair: tuple[int, int]) -> str:
    return f"{pair[0]}>{pair[1]}"
