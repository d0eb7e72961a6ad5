"""DeepSeek V4: a window of latents on every layer, beside it compressed entries, an indexer, and the open group.

Three kinds of layers (transformers' names; the published file says them by ratio)::

    sliding_attention             ratio 0     self_attn
    compressed_sparse_attention   ratio 4     self_attn, self_attn.compressor(.state), self_attn.indexer(.state)
    heavily_compressed_attention  ratio 128   self_attn, self_attn.compressor(.state)

With r the layer's rate, d = ``head_dim`` and i = ``index_head_dim``, the arrays and where transformers'
``DeepseekV4CSACache`` and ``DeepseekV4HCACache`` keep them (its batch axis left out):

===============================  =============  ======================  ================================================
layer                            part           axes                    meaning
===============================  =============  ======================  ================================================
self_attn                        latent         token; dim d            ``keys`` (the values are the same tensor), after
                                                                        norm and rotation; transformers keeps the last
                                                                        ``sliding_window`` - 1 tokens
self_attn.compressor             latent         entry of r; dim d       ``compressed_kv["compressor"]``
self_attn.indexer                latent         entry of r; dim i       ``compressed_kv["indexer"]``
self_attn.compressor.state       buffer.kv      slot r; dim d or 2d     ``buffer_kv["compressor"]``
self_attn.compressor.state       buffer.gate    slot r; dim d or 2d     ``buffer_gate["compressor"]``
self_attn.compressor.state       overlap.kv     slot r; dim d           ``overlap_kv["compressor"]``, sparse layers only
self_attn.compressor.state       overlap.gate   slot r; dim d           ``overlap_gate["compressor"]``, the same
self_attn.indexer.state          the same four  i in the place of d     the same four under ``"indexer"``
===============================  =============  ======================  ================================================

After T tokens there are T // r entries (``entry_count``), and the buffers hold the T % r tokens of the open group:
slot s is token (T // r) * r + s, further slots mean nothing. Sparse layers project twice the width (dim 2d: first the
series that the next entry reads, then this entry's), and keep the first half of the last closed group as overlap: slot
s there is token (T // r - 1) * r + s. While no group has closed (T < r) there is no overlap: kv is 0 and the gate minus
infinity, which weighs nothing in the softmax. ``overlap.gate`` has the position bias added, which stays float32 in a
loaded model, and so is float32 whatever the model's dtype (a bfloat16 value is held by it exactly); the other buffers
have the model's dtype. Nothing here is split by tensor parallelism: there is one latent for all heads, whatever
``num_key_value_heads`` says.
"""

from __future__ import annotations

from kvweave.core.array import Axis, DType
from kvweave.core.spec import CircularBufferSpec, MLAAttentionSpec, StatePart
from kvweave.models.attention import whole_dtype
from kvweave.models.decoder import Decoder, Module, Predictor, predictor_count
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheSetting

WINDOWED = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
KINDS = {0: WINDOWED, 4: SPARSE, 128: HEAVY}
"""The published ratios and the kinds that they mean (transformers' DeepseekV4Config)."""


def deepseek_v4(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """DeepSeek V4, from published ``compress_ratios`` or from transformers' ``layer_types`` and ``compress_rates``."""
    whole_dtype(reader, setting)
    layers = reader.layer_count()
    wanted = predictor_count(reader, "num_nextn_predict_layers") if setting.mtp else 0
    kinds, rates = (
        _published(reader, layers, wanted) if reader.states("compress_ratios") else _saved(reader, layers, wanted)
    )
    modules = {kind: _modules(reader, setting, kind, rates) for kind in dict.fromkeys(kinds)}
    predictors = tuple(
        Predictor(f"model.layers.{place}", modules[kinds[place]]) for place in range(layers, layers + wanted)
    )
    return Decoder(tuple(modules[kind] for kind in kinds[:layers]), predictors)


def _published(reader: ConfigReader, layers: int, predictors: int) -> tuple[tuple[str, ...], dict[str, int]]:
    """Kinds and rates by ``compress_ratios``: one entry per layer, then one per prediction layer."""
    ratios = reader.numbers("compress_ratios", max(KINDS))
    unknown = sorted(set(ratios) - set(KINDS))
    if unknown:
        raise reader.error(f"compress_ratios has {unknown}; this family has 0, 4 and 128")
    in_file = reader.number("num_nextn_predict_layers") if reader.states("num_nextn_predict_layers") else 0
    if len(ratios) not in {layers + predictors, layers + in_file}:
        raise reader.error(
            f"compress_ratios has {len(ratios)} entries for {layers} layers and {in_file} prediction layers; "
            "state one for each"
        )
    return tuple(KINDS[ratio] for ratio in ratios), {SPARSE: 4, HEAVY: 128}


def _saved(reader: ConfigReader, layers: int, predictors: int) -> tuple[tuple[str, ...], dict[str, int]]:
    if predictors:
        raise reader.error(
            "mtp is true; the prediction layers' kind stands in compress_ratios only: use the published file"
        )
    if not reader.states("layer_types"):
        raise reader.missing("compress_ratios", "layer_types")
    kinds = reader.words("layer_types", (WINDOWED, SPARSE, HEAVY), layers)
    rates = reader.section("compress_rates") if set(kinds) != {WINDOWED} else reader
    return kinds, {kind: rates.count(kind) for kind in (SPARSE, HEAVY) if kind in kinds}


def _modules(reader: ConfigReader, setting: CacheSetting, kind: str, rates: dict[str, int]) -> tuple[Module, ...]:
    size, window = reader.count("head_dim"), reader.count("sliding_window")
    windowed = Module("self_attn", MLAAttentionSpec(size, setting.attention_dtype, sliding_window=window))
    if kind == WINDOWED:
        return (windowed,)
    if kind == HEAVY:
        return (windowed, *_compressed("self_attn.compressor", size, rates[kind], setting, overlapping=False))
    return (
        windowed,
        *_compressed("self_attn.compressor", size, rates[kind], setting, overlapping=True),
        *_compressed("self_attn.indexer", reader.count("index_head_dim"), rates[kind], setting, overlapping=True),
    )


def _compressed(name: str, size: int, rate: int, setting: CacheSetting, *, overlapping: bool) -> tuple[Module, Module]:
    """The closed entries, and the state of the group that is still open."""
    slot, model = Axis("slot", rate), setting.model_dtype
    buffer = (slot, Axis("dim", 2 * size if overlapping else size))
    states = [StatePart("buffer.kv", buffer, model), StatePart("buffer.gate", buffer, model)]
    if overlapping:
        overlap = (slot, Axis("dim", size))
        states += [StatePart("overlap.kv", overlap, model), StatePart("overlap.gate", overlap, DType.of("float32"))]
    entries = MLAAttentionSpec(size, setting.attention_dtype, tokens_per_state=rate)
    return Module(name, entries), Module(f"{name}.state", CircularBufferSpec(tuple(states)))
