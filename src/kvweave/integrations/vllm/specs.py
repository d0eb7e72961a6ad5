"""From a layer's vLLM spec to what it caches in kvweave's words, with the whole model's sizes.

=====================================  ===============================================================================
vLLM's spec                            kvweave's
=====================================  ===============================================================================
FullAttentionSpec (Sink, RSWA too)     full attention; with ``sliding_window`` or ``attention_chunk_size`` (hybrid
                                       manager off) the window or chunk that the layer computes with
SlidingWindowSpec                      sliding window
ChunkedLocalAttentionSpec              chunked local attention
MLAAttentionSpec, SlidingWindowMLASpec one vector per entry: latent, indexer key, partial state of a compressor
CircularBufferSpec                     the open group's ring, as it lies: one slot per row
MambaSpec                              the states, from the model's configuration
=====================================  ===============================================================================

R-SWA frees blocks behind the prompt only, and sinks lie in blocks of their own, so both transfer like full attention.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from vllm.v1 import kv_cache_interface as vllm_specs

from kvweave.core.array import Axis, DType
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    StatePart,
)
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.layer_facts import LayerFacts
from kvweave.integrations.vllm.version import INDEXER_BACKENDS, REFUSED_SPECS, RING_BACKENDS
from kvweave.integrations.vllm.whole_model import WholeModel

_SHORT_CONV = "SHORT_CONV"
_CACHE_DTYPE_ALIASES = {"fp8": "fp8_e4m3"}
"""vLLM's ``--kv-cache-dtype`` names that mean one format."""


def translate_spec(layer: str, spec: Any, whole: WholeModel, facts: LayerFacts, tp: int, conv_order: str) -> LayerSpec:
    """What a layer caches, over the whole model.

    Raises ``ConfigurationError`` that names the layer and what stands against it.
    """
    refuse_spec(layer, spec)
    match spec:
        case vllm_specs.MambaSpec():
            return _state(layer, spec, whole, tp, conv_order)
        case vllm_specs.CircularBufferSpec():
            return _ring(layer, spec, whole, facts)
        case vllm_specs.MLAAttentionSpec() | vllm_specs.SlidingWindowMLASpec():
            return _latent(layer, spec, whole, facts)
        case vllm_specs.FullAttentionSpec() | vllm_specs.SlidingWindowSpec() | vllm_specs.ChunkedLocalAttentionSpec():
            return _attention(layer, spec, whole, tp, facts)
        case _:
            raise ConfigurationError(
                f"{layer}: {type(spec).__name__} is not known to this connector; serve this model without it"
            )


def refuse_spec(layer: str, spec: Any) -> None:
    """Raises ``ConfigurationError`` for a spec that cannot be moved, with the reason."""
    for kind in type(spec).__mro__:
        if kind.__name__ in REFUSED_SPECS:
            raise ConfigurationError(
                f"{layer}: {type(spec).__name__} cannot be transferred: {REFUSED_SPECS[kind.__name__]}"
            )
    if isinstance(spec, vllm_specs.AttentionSpec) and Fraction(spec.tokens_per_state) < 1:
        raise ConfigurationError(
            f"{layer}: tokens_per_state {spec.tokens_per_state} keeps several entries a token (block pooling), "
            "which cannot be transferred; serve this model without the connector"
        )
    if isinstance(spec, vllm_specs.MambaSpec) and len(spec.shapes) > 2:
        raise ConfigurationError(
            f"{layer}: its state has {len(spec.shapes)} tensors, two are known; ReplaySSM and RecoverSSM records "
            "cannot be transferred: turn them off"
        )


def element_type(spec: Any, whole: WholeModel) -> DType:
    """The dtype of a dense attention cache: vLLM's name of the quantised ones, since they share torch's uint8."""
    item = vllm_specs.get_dtype_size(spec.dtype)
    if spec.kv_quant_mode == vllm_specs.KVQuantMode.NONE:
        return DType(str(spec.dtype).removeprefix("torch."), item)
    return DType(_stored_name(spec, whole), item)


def cell_type(spec: Any, whole: WholeModel) -> DType:
    """The dtype of a row that is one run of bytes, whose inside only the backend knows."""
    return DType(f"{_stored_name(spec, whole)}.{spec.state_content_bytes}", spec.state_content_bytes)


def _stored_name(spec: Any, whole: WholeModel) -> str:
    stored = getattr(spec, "cache_dtype_str", None) or whole.cache_dtype
    return _CACHE_DTYPE_ALIASES.get(stored, stored)


def _attention(layer: str, spec: Any, whole: WholeModel, tp: int, facts: LayerFacts) -> LayerSpec:
    heads = whole.heads(layer)
    local = heads // tp if heads >= tp else 1
    known = whole.attention(layer)
    head_size = (spec.head_size, spec.head_size_v)
    if known is not None and head_size != (known.head_size, known.head_size_v or known.head_size):
        raise ConfigurationError(
            f"{layer}: head sizes {head_size} in vLLM, {known.head_size} in the model's configuration; "
            "this architecture is not described right, serve it without the connector"
        )
    if spec.num_kv_heads != local:
        raise ConfigurationError(
            f"{layer}: {spec.num_kv_heads} KV heads on this rank, but {heads} in the model's configuration over "
            f"tp={tp} are {local}; this architecture is not described right, serve it without the connector"
        )
    dtype, key_size, value_size = element_type(spec, whole), spec.head_size, spec.head_size_v
    if spec.state_content_bytes is not None and spec.num_head_slots is None:
        cell = cell_type(spec, whole)
        dtype, key_size, value_size = DType(cell.name, 1), -(-cell.nbytes // 2), cell.nbytes // 2
    window, chunk = (getattr(spec, reach, None) for reach in ("sliding_window", "attention_chunk_size"))
    if window is not None and not facts.attends_all:
        return SlidingWindowSpec(heads, key_size, window, value_size, dtype, spec.dcp_sharded)
    if chunk is not None and not facts.attends_all:
        return ChunkedLocalAttentionSpec(heads, key_size, chunk, value_size, dtype, spec.dcp_sharded)
    return FullAttentionSpec(heads, key_size, value_size, dtype, spec.dcp_sharded)


def _latent(layer: str, spec: Any, whole: WholeModel, facts: LayerFacts) -> MLAAttentionSpec:
    if spec.num_kv_heads != 1 or spec.num_head_slots is not None:
        raise ConfigurationError(
            f"{layer}: a latent with {spec.num_kv_heads} heads in {spec.num_heads} slots; one head is known, "
            "serve this model without the connector"
        )
    part = "indexer" if facts.backend in INDEXER_BACKENDS else "latent"
    known = whole.latent(layer) if part == "latent" and spec.state_content_bytes is None else None
    plain = known is not None and known.tokens_per_state == 1 and known.sliding_window is None
    if known is not None and plain and known.dtype.nbytes <= 8 and known.head_size != spec.head_size:
        raise ConfigurationError(
            f"{layer}: a latent of {spec.head_size} in vLLM, {known.head_size} in the model's configuration; "
            "this architecture is not described right, serve it without the connector"
        )
    size, dtype = spec.head_size, element_type(spec, whole)
    if spec.state_content_bytes is not None:
        size, dtype = 1, cell_type(spec, whole)
    return MLAAttentionSpec(
        size, dtype, int(spec.tokens_per_state), getattr(spec, "sliding_window", None), part, spec.dcp_sharded
    )


def _ring(layer: str, spec: Any, whole: WholeModel, facts: LayerFacts) -> CircularBufferSpec:
    if facts.backend not in RING_BACKENDS or spec.state_content_bytes is not None or spec.head_size_v:
        raise ConfigurationError(
            f"{layer}: the ring of backend {facts.backend} is not known; known are those of "
            f"{', '.join(sorted(RING_BACKENDS))}: serve this model without the connector"
        )
    axes = (Axis("row", spec.num_kv_heads), Axis("slot", spec.block_size), Axis("dim", spec.head_size))
    return CircularBufferSpec((StatePart("buffer", axes, element_type(spec, whole)),))


def _state(layer: str, spec: Any, whole: WholeModel, tp: int, conv_order: str) -> MambaSpec:
    if spec.mamba_type.name == _SHORT_CONV or spec.tp_replicated:
        return _short_conv(layer, spec, whole, tp, conv_order)
    known = whole.state(layer)
    has_conv = any(state.part.startswith("conv.") for state in known.states)
    if len(spec.shapes) != 1 + has_conv:
        raise ConfigurationError(
            f"{layer}: {len(spec.shapes)} state tensors in vLLM, the model's configuration describes "
            f"{', '.join(state.part for state in known.states)}; serve this model without the connector"
        )
    taps = _taps(spec.shapes[0], conv_order)
    states = tuple(
        _with_taps(state, taps, _dtype(spec.dtypes[0]))
        if state.part.startswith("conv.")
        else replace(state, dtype=_dtype(spec.dtypes[-1]))
        for state in known.states
    )
    return MambaSpec(spec.mamba_type.name.lower(), states)


def _short_conv(layer: str, spec: Any, whole: WholeModel, tp: int, conv_order: str) -> MambaSpec:
    """One convolution's taps by channel (LFM2), or the same on every rank (``tp_replicated``)."""
    if len(spec.shapes) != 1 or len(spec.shapes[0]) != 2:
        raise ConfigurationError(
            f"{layer}: state shapes {spec.shapes} are not those of a short convolution; serve it without the connector"
        )
    taps = _taps(spec.shapes[0], conv_order)
    local = spec.shapes[0][0] * spec.shapes[0][1] // taps
    if not spec.tp_replicated and whole.short_conv_channels != local * tp:
        raise ConfigurationError(
            f"{layer}: {local} channels on this rank of tp={tp}, but conv_dim {whole.short_conv_channels} in the "
            "model's configuration; they must agree, serve this model without the connector"
        )
    channels = Axis("channel", local) if spec.tp_replicated else Axis("channel", local * tp, local * tp)
    return MambaSpec("short_conv", (StatePart("conv.x", (channels, Axis("tap", taps)), _dtype(spec.dtypes[0])),))


def _taps(shape: tuple[int, ...], conv_order: str) -> int:
    """The tap axis of a conv state: first in the order SD, last in DS."""
    return int(shape[0] if conv_order == "SD" else shape[-1])


def _with_taps(state: StatePart, taps: int, dtype: DType) -> StatePart:
    """The part with vLLM's number of taps, which speculative tokens widen."""
    axes = tuple(replace(axis, size=taps) if axis.name == "tap" else axis for axis in state.axes)
    return replace(state, axes=axes, dtype=dtype)


def _dtype(dtype: Any) -> DType:
    return DType.of(str(dtype).removeprefix("torch."))
