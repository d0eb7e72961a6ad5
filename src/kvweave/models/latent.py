"""Families with multi-head latent attention: DeepSeek V2, V3, R1 and V3.2, Kimi K2.

Every layer keeps one vector per token, the same for all heads: the latent (``kv_lora_rank``), then the rotated part of
the key (``qk_rope_head_dim``). ``num_key_value_heads`` and the head sizes shape the computation, not the cache.
V3.2 keeps a second vector per token, the key of its sparse-attention indexer (``index_head_dim``), in the model's
dtype as transformers does (vLLM packs it with its scale: its adapter states that layout itself).
"""

from __future__ import annotations

from kvweave.core.spec import MLAAttentionSpec
from kvweave.models.decoder import Decoder, Module, Predictor, predictor_count
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheSetting


def latent_attention(reader: ConfigReader, setting: CacheSetting) -> MLAAttentionSpec:
    """The latent and the rotated key part; one opaque element of 656 bytes when the cache dtype is ``fp8_ds_mla``.

    Those 656 bytes are 512 FP8 values, four float32 scales and 64 bfloat16 values (vLLM's FlashMLA layout).
    """
    latent, rotated = reader.count("kv_lora_rank"), reader.count("qk_rope_head_dim")
    if setting.attention_dtype.name != "fp8_ds_mla":
        return MLAAttentionSpec(latent + rotated, setting.attention_dtype)
    if (latent, rotated) != (512, 64):
        raise reader.error(
            f"cache_dtype fp8_ds_mla holds 512 + 64 elements, this latent has {latent} + {rotated}; choose another"
        )
    return MLAAttentionSpec(1, setting.attention_dtype)


def deepseek(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """DeepSeek V2, V3, R1 and Kimi K2; a file with ``index_topk`` has V3.2's indexer (vLLM's way to tell)."""
    if reader.states("index_topk"):
        return deepseek_v32(reader, setting)
    return _decoder(reader, setting, (Module("self_attn", latent_attention(reader, setting)),))


def deepseek_v32(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """DeepSeek V3.2: latent and indexer key on every layer."""
    if reader.states("layer_types"):
        reader.words("layer_types", ("indexed_attention",), reader.layer_count())
    indexer = MLAAttentionSpec(reader.count("index_head_dim"), setting.model_dtype, part="indexer")
    attention = Module("self_attn", latent_attention(reader, setting))
    return _decoder(reader, setting, (attention, Module("self_attn.indexer", indexer)))


def _decoder(reader: ConfigReader, setting: CacheSetting, modules: tuple[Module, ...]) -> Decoder:
    layers = reader.layer_count()
    predictors = predictor_count(reader, "num_nextn_predict_layers") if setting.mtp else 0
    return Decoder(
        (modules,) * layers, tuple(Predictor(f"model.layers.{layers + place}", modules) for place in range(predictors))
    )
