"""Families whose layers keep ``k`` and ``v``: which layers see everything, a window, or a chunk.

==============================  =====================================================================================
family                          which layers slide (transformers' configuration class of the family)
==============================  =====================================================================================
Llama, GLM-4.5, MiniMax-M2      none (Llama: those that ``layer_types`` names, as in vLLM's LlamaAttention)
Mistral, Mixtral                all, when ``sliding_window`` is a number
Qwen2, Qwen3                    with ``use_sliding_window``: those from ``max_window_layers`` on
Qwen2-MoE                       with ``use_sliding_window``: even ones below ``max_window_layers``
Qwen3-MoE                       with ``use_sliding_window``: all
Gemma 2, gpt-oss                even ones
Gemma 3                         all but every sixth (or ``sliding_window_pattern``-th)
Llama 4                         chunks on those with rotary embedding: all but every fourth (``no_rope_layers``)
==============================  =====================================================================================

A ``layer_types`` list in the file goes before these rules. The head size is the file's ``head_dim``; hidden size over
heads only where the family's code falls back to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvweave.core.array import DType
from kvweave.core.spec import ChunkedLocalAttentionSpec, FullAttentionSpec, LayerSpec, SlidingWindowSpec
from kvweave.models.decoder import Decoder, Module, Predictor, predictor_count, refuse_mtp
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheSetting

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What all attention layers of a model have in common."""

    num_kv_heads: int
    head_size: int
    dtype: DType

    def full(self) -> FullAttentionSpec:
        """A layer that sees every token."""
        return FullAttentionSpec(self.num_kv_heads, self.head_size, dtype=self.dtype)

    def window(self, tokens: int) -> SlidingWindowSpec:
        """A layer that sees the last ``tokens`` tokens."""
        return SlidingWindowSpec(self.num_kv_heads, self.head_size, tokens, dtype=self.dtype)

    def chunk(self, tokens: int) -> ChunkedLocalAttentionSpec:
        """A layer that sees its own chunk."""
        return ChunkedLocalAttentionSpec(self.num_kv_heads, self.head_size, tokens, dtype=self.dtype)


def attention_shape(
    reader: ConfigReader, setting: CacheSetting, *head_keys: str, divided: bool = False, all_heads: bool = False
) -> AttentionShape:
    """Heads and head size.

    ``head_keys`` are the family's names of the head size (``head_dim`` when none is given); ``divided`` says that the
    family falls back to hidden size over heads, ``all_heads`` that it takes as many KV heads as heads when the file
    states none. A null ``num_key_value_heads`` means that in every family.
    """
    heads = reader.count("num_attention_heads")
    null = "num_key_value_heads" in reader.values and not reader.states("num_key_value_heads")
    stated = reader.states("num_key_value_heads")
    kv_heads = heads if null or (all_heads and not stated) else reader.count("num_key_value_heads")
    if heads % kv_heads:
        raise reader.error(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}; correct one"
        )
    return AttentionShape(
        kv_heads, _head_size(reader, heads, head_keys or ("head_dim",), divided), whole_dtype(reader, setting)
    )


def whole_dtype(reader: ConfigReader, setting: CacheSetting) -> DType:
    """The attention dtype, which must be one per element here: opaque latent entries have no heads."""
    if setting.attention_dtype.name == "fp8_ds_mla":
        raise reader.error("cache_dtype is fp8_ds_mla, an entry of 512 + 64 elements of a latent; choose another dtype")
    return setting.attention_dtype


def llama(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Llama: full attention, unless ``layer_types`` lets some layers slide (vLLM's LlamaAttention)."""
    refuse_mtp(reader, setting)
    shape = attention_shape(reader, setting, divided=True, all_heads=True)
    return Decoder(_by_kind(reader, shape, _kinds(reader, (FULL, SLIDING), lambda _: False)))


def mistral(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Mistral and Mixtral: one window on every layer, or none (v0.1 has 4096, later ones null)."""
    refuse_mtp(reader, setting)
    sliding = reader.nullable_count("sliding_window") is not None
    shape = attention_shape(reader, setting, divided=True)
    kinds = _kinds(reader, (SLIDING if sliding else FULL,), lambda _: sliding)
    return Decoder(_by_kind(reader, shape, kinds))


def qwen2(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Qwen2 and Qwen2.5: the window key is off unless ``use_sliding_window`` is true."""
    return _qwen(reader, setting, lambda layer: layer >= reader.count("max_window_layers"), divided=True)


def qwen2_moe(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Qwen2-MoE: as Qwen2, with a rule of its own for which layers slide."""
    return _qwen(
        reader, setting, lambda layer: layer % 2 == 0 and layer < reader.count("max_window_layers"), divided=True
    )


def qwen3(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Qwen3: as Qwen2, but the head size is always stated (128, not hidden size over heads)."""
    return _qwen(reader, setting, lambda layer: layer >= reader.count("max_window_layers"), divided=False)


def qwen3_moe(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Qwen3-MoE: as Qwen3, but a window that is on is on everywhere."""
    return _qwen(reader, setting, lambda _: True, divided=False)


def alternating(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Gemma 2 and gpt-oss: even layers slide."""
    return _patterned(reader, setting, lambda layer: layer % 2 == 0)


def gemma3(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Gemma 3: five sliding layers, then a full one. Files may state the period; 6 is the family's."""
    names = [key for key in ("sliding_window_pattern", "_sliding_window_pattern") if reader.states(key)]
    period = reader.count(*names) if names else 6
    return _patterned(reader, setting, lambda layer: (layer + 1) % period != 0)


def llama4(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Llama 4: layers with rotary embedding attend inside their chunk, the others to everything.

    ``no_rope_layers`` has 1 for a layer *with* rotary embedding; an empty or missing list means that every
    ``no_rope_layer_interval``-th (4th unless stated) has none. A null ``attention_chunk_size`` switches chunks off.
    """
    refuse_mtp(reader, setting)
    chunked = reader.nullable_count("attention_chunk_size") is not None
    rotary = _rotary_layers(reader)
    shape = attention_shape(reader, setting, divided=True)
    kinds = _kinds(reader, (FULL, CHUNKED), lambda layer: chunked and rotary[layer] == 1, limited=CHUNKED)
    return Decoder(_by_kind(reader, shape, kinds))


def glm4_moe(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """GLM-4.5: full attention everywhere; prediction layers are ordinary layers after the last one."""
    shape = attention_shape(reader, setting, divided=True)
    layers = reader.layer_count()
    predictors = predictor_count(reader, "num_nextn_predict_layers") if setting.mtp else 0
    modules = (Module("self_attn", shape.full()),)
    return Decoder(
        (modules,) * layers, tuple(Predictor(f"model.layers.{layers + place}", modules) for place in range(predictors))
    )


def minimax_m2(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """MiniMax-M2: full attention everywhere; ``attn_type_list``, left from its hybrid predecessor, is all 1."""
    refuse_mtp(reader, setting)
    reader.refuse("sliding_window", "no window is known for this family: make it null")
    layers = reader.layer_count()
    if reader.states("attn_type_list") and set(reader.numbers("attn_type_list", 1, layers)) != {1}:
        raise reader.error("attn_type_list has a 0 (lightning attention); this family has full attention only: all 1")
    return Decoder(((Module("self_attn", attention_shape(reader, setting).full()),),) * layers)


def _qwen(reader: ConfigReader, setting: CacheSetting, slides: Callable[[int], bool], divided: bool) -> Decoder:
    refuse_mtp(reader, setting)
    shape = attention_shape(reader, setting, divided=divided)
    windowed = reader.switch("use_sliding_window", otherwise=False)
    allowed = (FULL, SLIDING) if windowed else (FULL,)
    return Decoder(_by_kind(reader, shape, _kinds(reader, allowed, lambda layer: windowed and slides(layer))))


def _patterned(reader: ConfigReader, setting: CacheSetting, slides: Callable[[int], bool]) -> Decoder:
    refuse_mtp(reader, setting)
    reader.refuse("use_bidirectional_attention", "an encoder keeps no cache between steps: make it false")
    shape = attention_shape(reader, setting)
    return Decoder(_by_kind(reader, shape, _kinds(reader, (FULL, SLIDING), slides)))


def _kinds(
    reader: ConfigReader, allowed: Sequence[str], limits: Callable[[int], bool], limited: str = SLIDING
) -> tuple[str, ...]:
    layers = reader.layer_count()
    if reader.states("layer_types"):
        return reader.words("layer_types", allowed, layers)
    return tuple(limited if limits(layer) else FULL for layer in range(layers))


def _by_kind(reader: ConfigReader, shape: AttentionShape, kinds: Sequence[str]) -> tuple[tuple[Module, ...], ...]:
    specs: dict[str, LayerSpec] = {FULL: shape.full()}
    if SLIDING in kinds:
        specs[SLIDING] = shape.window(reader.count("sliding_window"))
    if CHUNKED in kinds:
        specs[CHUNKED] = shape.chunk(reader.count("attention_chunk_size"))
    return tuple((Module("self_attn", specs[kind]),) for kind in kinds)


def _rotary_layers(reader: ConfigReader) -> tuple[int, ...]:
    layers = reader.layer_count()
    if reader.values.get("no_rope_layers"):
        return reader.numbers("no_rope_layers", 1, layers)
    period = reader.optional_count("no_rope_layer_interval") or 4
    return tuple(int((layer + 1) % period != 0) for layer in range(layers))


def _head_size(reader: ConfigReader, heads: int, keys: Sequence[str], divided: bool) -> int:
    if not divided or any(reader.states(key) for key in keys):
        return reader.count(*keys)
    hidden = reader.count("hidden_size")
    if hidden % heads:
        raise reader.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; state head_dim")
    return hidden // heads
