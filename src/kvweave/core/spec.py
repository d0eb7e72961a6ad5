"""What a model caches, as named logical arrays.

A layer's spec says which arrays it keeps. An array has named axes in the coordinates of the *whole* model, says for
each axis into how many units tensor parallelism may split it, and either has a token axis or is a per-request state::

    attention   k, v        (token, head, dim)
    MLA         latent      (token, dim)                  a token axis may be compressed: one entry for r tokens
    Mamba2      conv.x      (channel, tap)   by head      conv.b, conv.c  (channel, tap)  by group
                ssm         (head, dim, state)
    Mamba1      conv.x      (channel, tap)                ssm  (channel, state)
    GDN, KDA    conv.q, conv.k, conv.v  (channel, tap)    ssm  (head, dim, state)

How many parts a layer has, how many heads, which dtype: all is data of that layer alone. Nothing here looks at a
neighbouring layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvweave.core.array import Axis, CacheArray, ChunkReach, DType, FullReach, TokenAxis, WindowReach
from kvweave.core.whole import require_whole


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Multi-head and grouped-query attention: ``k`` and ``v`` over (token, head, dim). Sizes are the whole model's."""

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    dtype: DType = field(default_factory=lambda: DType.of("bfloat16"))
    dcp_sharded: bool = True

    def arrays(self) -> tuple[CacheArray, ...]:
        """``k`` and ``v``."""
        return _key_value(
            self.num_kv_heads, self.head_size, self.head_size_v, self.dtype, TokenAxis(dcp_sharded=self.dcp_sharded)
        )


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """Attention whose token t sees tokens t - sliding_window + 1 to t."""

    num_kv_heads: int
    head_size: int
    sliding_window: int
    head_size_v: int | None = None
    dtype: DType = field(default_factory=lambda: DType.of("bfloat16"))
    dcp_sharded: bool = False

    def arrays(self) -> tuple[CacheArray, ...]:
        """``k`` and ``v``."""
        tokens = TokenAxis(reach=WindowReach(self.sliding_window), dcp_sharded=self.dcp_sharded)
        return _key_value(self.num_kv_heads, self.head_size, self.head_size_v, self.dtype, tokens)


@dataclass(frozen=True, slots=True)
class ChunkedLocalAttentionSpec:
    """Attention whose token t sees the tokens of its own chunk up to t (Llama 4)."""

    num_kv_heads: int
    head_size: int
    attention_chunk_size: int
    head_size_v: int | None = None
    dtype: DType = field(default_factory=lambda: DType.of("bfloat16"))
    dcp_sharded: bool = False

    def arrays(self) -> tuple[CacheArray, ...]:
        """``k`` and ``v``."""
        tokens = TokenAxis(reach=ChunkReach(self.attention_chunk_size), dcp_sharded=self.dcp_sharded)
        return _key_value(self.num_kv_heads, self.head_size, self.head_size_v, self.dtype, tokens)


@dataclass(frozen=True, slots=True)
class MLAAttentionSpec:
    """One vector of ``head_size`` per entry, the same on every tensor rank.

    Serves MLA's latent with its rotated part (512 + 64), sparse-attention indexer keys, windowed latents and caches
    compressed by ``tokens_per_state`` (vLLM's name for r). ``part`` names the array.
    """

    head_size: int
    dtype: DType = field(default_factory=lambda: DType.of("bfloat16"))
    tokens_per_state: int = 1
    sliding_window: int | None = None
    part: str = "latent"
    dcp_sharded: bool | None = None

    def arrays(self) -> tuple[CacheArray, ...]:
        """The one array; interleaved by dcp unless it is windowed, compressed or stated otherwise."""
        reach = FullReach() if self.sliding_window is None else WindowReach(self.sliding_window)
        plain = self.tokens_per_state == 1 and self.sliding_window is None
        dcp_sharded = plain if self.dcp_sharded is None else self.dcp_sharded
        tokens = TokenAxis(self.tokens_per_state, reach, dcp_sharded)
        return (CacheArray(self.part, (Axis("dim", self.head_size),), self.dtype, tokens),)


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a per-request state, with the axes of the whole model."""

    part: str
    axes: tuple[Axis, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """The per-request state of a recurrent layer: one to five tensors, each with its own split and dtype.

    The constructors give the four known kinds; ``mamba_type`` is vLLM's name of the kind.
    """

    mamba_type: str
    states: tuple[StatePart, ...]

    def arrays(self) -> tuple[CacheArray, ...]:
        """One array per state tensor, without token axis."""
        return tuple(CacheArray(state.part, state.axes, state.dtype, None) for state in self.states)

    @staticmethod
    def mamba1(
        intermediate_size: int,
        state_size: int,
        conv_kernel: int,
        dtype: DType,
        ssm_dtype: DType,
        speculative_tokens: int = 0,
    ) -> MambaSpec:
        """Mamba1: everything split by channel."""
        tap = _tap_axis(conv_kernel, speculative_tokens)
        channel = Axis("channel", intermediate_size, intermediate_size)
        return MambaSpec(
            "mamba1",
            (
                StatePart("conv.x", (channel, tap), dtype),
                StatePart("ssm", (channel, Axis("state", state_size)), ssm_dtype),
            ),
        )

    @staticmethod
    def mamba2(
        num_heads: int,
        head_size: int,
        num_groups: int,
        state_size: int,
        conv_kernel: int,
        dtype: DType,
        ssm_dtype: DType,
        speculative_tokens: int = 0,
    ) -> MambaSpec:
        """Mamba2: ``conv.x`` and ``ssm`` by head, ``conv.b`` and ``conv.c`` by group."""
        require_whole(
            "mamba2", 1, num_heads=num_heads, head_size=head_size, num_groups=num_groups, state_size=state_size
        )
        tap = _tap_axis(conv_kernel, speculative_tokens)
        heads = Axis("channel", num_heads * head_size, num_heads)
        groups = Axis("channel", num_groups * state_size, num_groups)
        ssm = (Axis("head", num_heads, num_heads), Axis("dim", head_size), Axis("state", state_size))
        return MambaSpec(
            "mamba2",
            (
                StatePart("conv.x", (heads, tap), dtype),
                StatePart("conv.b", (groups, tap), dtype),
                StatePart("conv.c", (groups, tap), dtype),
                StatePart("ssm", ssm, ssm_dtype),
            ),
        )

    @staticmethod
    def gdn(
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_kernel: int,
        dtype: DType,
        ssm_dtype: DType,
        speculative_tokens: int = 0,
        mamba_type: str = "gdn_attention",
    ) -> MambaSpec:
        """Gated delta net: ``conv.q``, ``conv.k`` by key head; ``conv.v`` and ``ssm`` by value head."""
        require_whole(mamba_type, 1, num_k_heads=num_k_heads, num_v_heads=num_v_heads)
        require_whole(mamba_type, 1, head_k_dim=head_k_dim, head_v_dim=head_v_dim)
        tap = _tap_axis(conv_kernel, speculative_tokens)
        keys = Axis("channel", num_k_heads * head_k_dim, num_k_heads)
        values = Axis("channel", num_v_heads * head_v_dim, num_v_heads)
        ssm = (Axis("head", num_v_heads, num_v_heads), Axis("dim", head_v_dim), Axis("state", head_k_dim))
        return MambaSpec(
            mamba_type,
            (
                StatePart("conv.q", (keys, tap), dtype),
                StatePart("conv.k", (keys, tap), dtype),
                StatePart("conv.v", (values, tap), dtype),
                StatePart("ssm", ssm, ssm_dtype),
            ),
        )

    @staticmethod
    def kda(
        num_heads: int, head_size: int, conv_kernel: int, dtype: DType, ssm_dtype: DType, speculative_tokens: int = 0
    ) -> MambaSpec:
        """Kimi delta attention: three conv arrays and a recurrent one, all by head."""
        return MambaSpec.gdn(
            num_heads,
            num_heads,
            head_size,
            head_size,
            conv_kernel,
            dtype,
            ssm_dtype,
            speculative_tokens,
            "kda_attention",
        )


@dataclass(frozen=True, slots=True)
class CircularBufferSpec:
    """The still open group of a compressed cache: per-request buffers without token axis, the same on every rank."""

    states: tuple[StatePart, ...]

    def arrays(self) -> tuple[CacheArray, ...]:
        """One array per buffer."""
        return tuple(CacheArray(state.part, state.axes, state.dtype, None) for state in self.states)


@dataclass(frozen=True, slots=True)
class StatedArraysSpec:
    """A layer whose arrays its engine states one by one: axes that a kernel keeps in pieces, packed rows, scales."""

    stated: tuple[CacheArray, ...]

    def arrays(self) -> tuple[CacheArray, ...]:
        """The stated arrays."""
        return self.stated


LayerSpec = (
    FullAttentionSpec
    | SlidingWindowSpec
    | ChunkedLocalAttentionSpec
    | MLAAttentionSpec
    | MambaSpec
    | CircularBufferSpec
    | StatedArraysSpec
)


@dataclass(frozen=True, slots=True)
class UniformTypeKVCacheSpecs:
    """Layers that share a block table, each with its own spec (vLLM's class of that name)."""

    kv_cache_specs: Mapping[str, LayerSpec]


def _tap_axis(conv_kernel: int, speculative_tokens: int) -> Axis:
    require_whole("conv state", 2, conv_kernel=conv_kernel)
    require_whole("conv state", speculative_tokens=speculative_tokens)
    return Axis("tap", conv_kernel - 1 + speculative_tokens)


def _key_value(
    num_kv_heads: int, head_size: int, head_size_v: int | None, dtype: DType, tokens: TokenAxis
) -> tuple[CacheArray, ...]:
    head = Axis("head", num_kv_heads, num_kv_heads)
    value_size = head_size if head_size_v is None else head_size_v
    return (
        CacheArray("k", (head, Axis("dim", head_size)), dtype, tokens),
        CacheArray("v", (head, Axis("dim", value_size)), dtype, tokens),
    )
