"""Families with linear attention: Qwen3-Next and Qwen3.5 (gated delta net), Kimi Linear (KDA beside latent attention).

Which layers are linear stands in ``layer_types``, or follows ``full_attention_interval`` (every n-th layer is full:
Qwen3-Next), or stands in lists that count layers from one (Kimi Linear).
"""

from __future__ import annotations

from kvweave.core.spec import MambaSpec
from kvweave.models.attention import FULL, attention_shape
from kvweave.models.decoder import Decoder, Module, Predictor, predictor_count, refuse_mtp
from kvweave.models.latent import latent_attention
from kvweave.models.mamba import require_taps
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheSetting

LINEAR = "linear_attention"


def qwen3_next(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Qwen3-Next: the recurrent state has the conv state's dtype (vLLM's ``gated_delta_net_state_dtype``)."""
    return _gated_delta_net(reader, setting, None, "num_nextn_predict_layers")


def qwen3_5(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Qwen3.5: the recurrent state has the file's ``mamba_ssm_dtype``, where it states one (vLLM does the same)."""
    return _gated_delta_net(reader, setting, reader.text("mamba_ssm_dtype"), "mtp_num_hidden_layers")


def kimi_linear(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Kimi Linear: KDA layers, whose recurrent state is float32 (vLLM's ``kda_state_dtype``), and latent ones."""
    refuse_mtp(reader, setting)
    published = reader.states("linear_attn_config")
    linear = reader.section("linear_attn_config") if published else reader
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    names = names if published else ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads, head_size, kernel = (linear.count(name) for name in names)
    require_taps(reader, kernel, setting)
    delta = MambaSpec.kda(
        heads, head_size, kernel, setting.conv_dtype, setting.ssm_dtype("float32"), setting.speculative_tokens
    )
    modules = {FULL: (Module("self_attn", latent_attention(reader, setting)),), LINEAR: (Module("self_attn", delta),)}
    kinds = _lists_from_one(linear, reader.layer_count()) if published else _stated_kinds(reader)
    return Decoder(tuple(modules[kind] for kind in kinds))


def _gated_delta_net(reader: ConfigReader, setting: CacheSetting, ssm_dtype: str | None, predictor_key: str) -> Decoder:
    kernel = reader.count("linear_conv_kernel_dim")
    require_taps(reader, kernel, setting)
    delta = MambaSpec.gdn(
        reader.count("linear_num_key_heads"),
        reader.count("linear_num_value_heads"),
        reader.count("linear_key_head_dim"),
        reader.count("linear_value_head_dim"),
        kernel,
        setting.conv_dtype,
        setting.ssm_dtype(ssm_dtype),
        setting.speculative_tokens,
    )
    full = (Module("self_attn", attention_shape(reader, setting).full()),)
    modules = {FULL: full, LINEAR: (Module("linear_attn", delta),)}
    predictors = predictor_count(reader, predictor_key) if setting.mtp else 0
    return Decoder(
        tuple(modules[kind] for kind in _stated_kinds(reader)),
        tuple(Predictor(f"mtp.layers.{place}", full) for place in range(predictors)),
    )


def _stated_kinds(reader: ConfigReader) -> tuple[str, ...]:
    layers = reader.layer_count()
    if reader.states("layer_types"):
        return reader.words("layer_types", (FULL, LINEAR), layers)
    if not reader.states("full_attention_interval"):
        raise reader.missing("layer_types", "full_attention_interval")
    interval = reader.count("full_attention_interval")
    return tuple(LINEAR if (layer + 1) % interval else FULL for layer in range(layers))


def _lists_from_one(linear: ConfigReader, layers: int) -> tuple[str, ...]:
    """Kinds by ``full_attn_layers`` and ``kda_layers``, which together are the numbers from 1 to ``layers``."""
    full, delta = linear.numbers("full_attn_layers", layers), linear.numbers("kda_layers", layers)
    if sorted(full + delta) != list(range(1, layers + 1)):
        raise linear.error(
            f"full_attn_layers {list(full)} and kda_layers {list(delta)} are not the numbers from 1 to {layers}, "
            "each once; correct the lists (they count from one)"
        )
    return tuple(FULL if layer + 1 in full else LINEAR for layer in range(layers))
