"""The families of tiny random models: what each one's config says.

Sizes are chosen for what they exercise: windows and chunks of 32 tokens, head counts that tp 2 and 4 divide (and a
family each with three and six heads), key and value heads of different size, Mamba2 with one and with two groups,
compression rates 4 and 128. Everything else is as small as the architecture allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DENSE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = _EXPERTS | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
_LATENT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_DEEPSEEK = _LATENT | _ROUTED | {"q_lora_rank": 24}
_MAMBA1 = {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8, "time_step_rank": 4}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_expand": 2, "mamba_chunk_size": 32}
_GATED_DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_HEADS_BY_WIDTH = {name: size for name, size in _DENSE.items() if name != "head_dim"}
_COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """One family: the ``model_type`` of its config and the values that are not the architecture's defaults."""

    model_type: str
    values: Mapping[str, Any]


FAMILIES: Mapping[str, TinyFamily] = {
    "llama": TinyFamily("llama", _DENSE),
    "llama-mqa": TinyFamily("llama", _DENSE | {"num_key_value_heads": 1}),
    "llama-3heads": TinyFamily(
        "llama", _DENSE | {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
    ),
    "llama-6heads": TinyFamily(
        "llama", _DENSE | {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 6}
    ),
    "qwen2": TinyFamily("qwen2", _HEADS_BY_WIDTH | {"hidden_size": 128}),
    "qwen3": TinyFamily("qwen3", _DENSE),
    "mistral": TinyFamily("mistral", _DENSE | {"sliding_window": 32}),
    "gemma2": TinyFamily("gemma2", _DENSE | {"sliding_window": 32, "query_pre_attn_scalar": 32}),
    "gemma3": TinyFamily(
        "gemma3_text",
        _DENSE
        | {
            "sliding_window": 32,
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        },
    ),
    "gpt-oss": TinyFamily("gpt_oss", _DENSE | {"sliding_window": 32, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4": TinyFamily(
        "llama4_text", _DENSE | {"intermediate_size_mlp": 128, "attention_chunk_size": 32, "num_local_experts": 4}
    ),
    "deepseek-v2": TinyFamily("deepseek_v2", _DEEPSEEK | {"first_k_dense_replace": 1, "topk_method": "greedy"}),
    "deepseek-v3": TinyFamily("deepseek_v3", _DEEPSEEK | {"first_k_dense_replace": 1}),
    "kimi-k2": TinyFamily(
        "deepseek_v3", _DEEPSEEK | {"first_k_dense_replace": 1, "n_group": 1, "num_hidden_layers": 3}
    ),
    "deepseek-v3.2": TinyFamily(
        "deepseek_v32", _DEEPSEEK | {"index_topk": 16, "index_head_dim": 32, "index_n_heads": 16}
    ),
    "deepseek-v4": TinyFamily(
        "deepseek_v4",
        _EXPERTS
        | {
            "hidden_size": 64,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", _COMPRESSED[0], _COMPRESSED[1], *_COMPRESSED, _COMPRESSED[0]],
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "n_routed_experts": 4,
            "num_hash_layers": 1,
            "sliding_window": 32,
            "o_groups": 2,
            "o_lora_rank": 16,
            "index_n_heads": 16,
            "index_head_dim": 32,
            "index_topk": 24,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 4,
        },
    ),
    "kimi-linear": TinyFamily(
        "kimi_linear",
        _LATENT
        | _ROUTED
        | {
            "linear_num_heads": 4,
            "linear_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        },
    ),
    "qwen3-next": TinyFamily(
        "qwen3_next", _DENSE | _GATED_DELTA | _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 32}
    ),
    "qwen3.5": TinyFamily("qwen3_5_text", _DENSE | _GATED_DELTA),
    "granite-4": TinyFamily(
        "granitemoehybrid",
        _HEADS_BY_WIDTH
        | _MAMBA2
        | {
            "mamba_n_groups": 1,
            "mamba_d_state": 24,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "position_embedding_type": "nope",
        },
    ),
    "bamba": TinyFamily(
        "bamba", _HEADS_BY_WIDTH | _MAMBA2 | {"mamba_n_groups": 1, "mamba_d_state": 24, "attn_layer_indices": [2]}
    ),
    "falcon-h1": TinyFamily(
        "falcon_h1", _DENSE | _MAMBA2 | {"mamba_n_groups": 1, "mamba_d_state": 24, "mamba_d_ssm": 128}
    ),
    "nemotron-h": TinyFamily(
        "nemotron_h",
        _DENSE
        | {
            "num_hidden_layers": 5,
            "hybrid_override_pattern": "M*-M*",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 24,
            "chunk_size": 32,
        },
    ),
    "jamba": TinyFamily(
        "jamba",
        _HEADS_BY_WIDTH
        | {
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "mamba_dt_rank": 4,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "mamba": TinyFamily("mamba", _MAMBA1),
    "falcon-mamba": TinyFamily("falcon_mamba", _MAMBA1 | {"intermediate_size": 96}),
    "mamba2": TinyFamily(
        "mamba2",
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "state_size": 24,
            "expand": 2,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "chunk_size": 32,
        },
    ),
}
"""The families by the name that ``tiny:NAME`` uses."""
