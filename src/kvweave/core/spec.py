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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvweave.errors import ConfigurationError

_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "int8": 1, "fp8_ds_mla": 656,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DType:
    """An element's type: a name that both sides must share, and its size in bytes.

    An element may be an opaque run of bytes (a quantised MLA entry with its scales inside): give it a name and a size.
    """

    name: str
    nbytes: int

    def __post_init__(self) -> None:
        _require_positive("dtype " + self.name, "nbytes", self.nbytes)

    @staticmethod
    def of(name: str | DType) -> DType:
        """The dtype of that name.

        >>> DType.of("bfloat16").nbytes
        2
        """
        if isinstance(name, DType):
            return name
        if name not in _ITEM_BYTES:
            raise ConfigurationError(f"dtype: {name!r} is not known; use one of {', '.join(sorted(_ITEM_BYTES))}")
        return DType(name, _ITEM_BYTES[name])


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis: ``size`` elements, split by tensor parallelism in ``units`` equal parts.

    ``units`` 0 means that every tensor rank holds all of it.
    """

    name: str
    size: int
    units: int = 0

    def __post_init__(self) -> None:
        _require_positive(f"axis {self.name}", "size", self.size)
        if self.units < 0 or (self.units and self.size % self.units):
            raise ConfigurationError(f"axis {self.name}: size {self.size} is not a multiple of its {self.units} units")


@dataclass(frozen=True, slots=True)
class FullReach:
    """Every token stays visible."""

    def first_needed(self, next_token: int) -> int:
        """The first token that computing ``next_token`` looks at."""
        return 0


@dataclass(frozen=True, slots=True)
class WindowReach:
    """The last ``tokens`` tokens are visible, the computed one included (vLLM's ``sliding_window``)."""

    tokens: int

    def first_needed(self, next_token: int) -> int:
        """The first token that computing ``next_token`` looks at."""
        return max(0, next_token - self.tokens + 1)


@dataclass(frozen=True, slots=True)
class ChunkReach:
    """The tokens of the current chunk are visible (vLLM's ``attention_chunk_size``)."""

    tokens: int

    def first_needed(self, next_token: int) -> int:
        """The first token that computing ``next_token`` looks at."""
        return next_token // self.tokens * self.tokens


Reach = FullReach | WindowReach | ChunkReach


@dataclass(frozen=True, slots=True)
class TokenAxis:
    """An array's token axis: one entry for ``tokens_per_entry`` tokens; entry j exists once token (j+1)*r - 1 does."""

    tokens_per_entry: int = 1
    reach: Reach = field(default_factory=FullReach)
    dcp_sharded: bool = True

    def __post_init__(self) -> None:
        _require_positive("token axis", "tokens_per_entry", self.tokens_per_entry)
        if not isinstance(self.reach, FullReach):
            _require_positive("token axis", "window or chunk", self.reach.tokens)


@dataclass(frozen=True, slots=True)
class CacheArray:
    """One named logical array of a layer. ``tokens`` is None for a per-request state."""

    part: str
    axes: tuple[Axis, ...]
    dtype: DType
    tokens: TokenAxis | None

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"array {self.part}: axis names {names} repeat; give each axis its own name")

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry (or of the whole state) over the whole model."""
        total = self.dtype.nbytes
        for axis in self.axes:
            total *= axis.size
        return total


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
        return _key_value(self.num_kv_heads, self.head_size, self.head_size_v, self.dtype, TokenAxis(dcp_sharded=self.dcp_sharded))


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
        intermediate_size: int, state_size: int, conv_kernel: int, dtype: DType, ssm_dtype: DType, speculative_tokens: int = 0
    ) -> MambaSpec:
        """Mamba1: everything split by channel."""
        tap = Axis("tap", conv_kernel - 1 + speculative_tokens)
        channel = Axis("channel", intermediate_size, intermediate_size)
        return MambaSpec(
            "mamba1",
            (StatePart("conv.x", (channel, tap), dtype), StatePart("ssm", (channel, Axis("state", state_size)), ssm_dtype)),
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
        tap = Axis("tap", conv_kernel - 1 + speculative_tokens)
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
        tap = Axis("tap", conv_kernel - 1 + speculative_tokens)
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
            num_heads, num_heads, head_size, head_size, conv_kernel, dtype, ssm_dtype, speculative_tokens, "kda_attention"
        )


@dataclass(frozen=True, slots=True)
class CircularBufferSpec:
    """The still open group of a compressed cache: per-request buffers without token axis, the same on every rank."""

    states: tuple[StatePart, ...]

    def arrays(self) -> tuple[CacheArray, ...]:
        """One array per buffer."""
        return tuple(CacheArray(state.part, state.axes, state.dtype, None) for state in self.states)


LayerSpec = (
    FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MLAAttentionSpec | MambaSpec | CircularBufferSpec
)


@dataclass(frozen=True, slots=True)
class UniformTypeKVCacheSpecs:
    """Layers that share a block table, each with its own spec (vLLM's class of that name)."""

    kv_cache_specs: Mapping[str, LayerSpec]


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """A module that caches something: its name, the decoder layer it belongs to (for pipeline stages), its spec."""

    name: str
    index: int
    spec: LayerSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that share one block table per request."""

    name: str
    layers: tuple[CacheLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigurationError(f"group {self.name}: it has no layers; leave the group out")


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Everything that one model caches. ``fingerprint`` tells a fine-tune of the same shape from its parent."""

    name: str
    num_layers: int
    groups: tuple[KVCacheGroup, ...]
    fingerprint: str = ""

    def __post_init__(self) -> None:
        _require_positive(f"model {self.name}", "num_layers", self.num_layers)
        seen: set[tuple[str, str]] = set()
        for layer in self.layers():
            if not 0 <= layer.index < self.num_layers:
                raise ConfigurationError(
                    f"layer {layer.name}: index {layer.index} is outside the model's {self.num_layers} layers"
                )
            for array in layer.spec.arrays():
                if (layer.name, array.part) in seen:
                    raise ConfigurationError(f"layer {layer.name}: part {array.part} appears twice; name each once")
                seen.add((layer.name, array.part))

    def layers(self) -> Iterator[CacheLayer]:
        """All layers that cache something, group by group."""
        for group in self.groups:
            yield from group.layers

    def bytes_per_token(self) -> float:
        """Bytes that one more token adds over the whole model, each array counted once (windows never full)."""
        return sum(
            array.entry_bytes / array.tokens.tokens_per_entry
            for layer in self.layers()
            for array in layer.spec.arrays()
            if array.tokens is not None
        )

    def bytes_per_request(self) -> int:
        """Bytes of all per-request states over the whole model, each array counted once."""
        return sum(
            array.entry_bytes for layer in self.layers() for array in layer.spec.arrays() if array.tokens is None
        )


def get_representative_spec_type(spec: LayerSpec | UniformTypeKVCacheSpecs) -> type[LayerSpec]:
    """The one type inside a spec, for those who want vLLM's answer; kvweave itself never asks.

    Raises ``ConfigurationError`` on a group that mixes types: no single answer would be right there.
    """
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        return type(spec)
    types = {type(inner) for inner in spec.kv_cache_specs.values()}
    if len(types) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in types)) or "no layers"
        raise ConfigurationError(f"group mixes {names}: there is no representative type; take every layer by its own spec")
    return types.pop()


def _key_value(
    num_kv_heads: int, head_size: int, head_size_v: int | None, dtype: DType, tokens: TokenAxis
) -> tuple[CacheArray, ...]:
    head = Axis("head", num_kv_heads, num_kv_heads)
    value_size = head_size if head_size_v is None else head_size_v
    return (
        CacheArray("k", (head, Axis("dim", head_size)), dtype, tokens),
        CacheArray("v", (head, Axis("dim", value_size)), dtype, tokens),
    )


def _require_positive(owner: str, name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{owner}: {name} is {value!r}; it must be a whole number of at least 1")
