"""What transformers saves must load here, and say exactly what transformers then caches.

For each family: a tiny random configuration, saved by transformers and read by kvweave, against the cache of a model
built from it after a prompt of 20 tokens. Elements are compared layer by layer: per token for keys and values, channels
of the convolution, sizes of the recurrent state.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest

from kvweave.core.array import CacheArray, ChunkReach, FullReach, WindowReach
from kvweave.models import describe, load

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

TOKENS = 20
BASE = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
    "intermediate_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **EXPERTS, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8,
    "head_dim": 16,
}  # fmt: skip
MIXER = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2}
WINDOW = {"head_dim": 16, "sliding_window": 8}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
LINEAR_LIST = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]

TINY = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "mistral without window": ("MistralConfig", {"sliding_window": None}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2 with windows": ("Qwen2Config", QWEN_WINDOW),
    "qwen2-moe": ("Qwen2MoeConfig", {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32}),
    "qwen2-moe with windows": (
        "Qwen2MoeConfig",
        {**EXPERTS, **QWEN_WINDOW, "num_experts": 4, "shared_expert_intermediate_size": 32},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 24}),
    "qwen3-moe": ("Qwen3MoeConfig", {**EXPERTS, "head_dim": 24, "num_experts": 4}),
    "gemma2": ("Gemma2Config", WINDOW),
    "gemma3": ("Gemma3TextConfig", {**WINDOW, "num_hidden_layers": 8}),
    "gpt-oss": ("GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4": (
        "Llama4TextConfig",
        {"head_dim": 16, "attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 64},
    ),
    "glm-4.5": ("Glm4MoeConfig", {**EXPERTS, "n_routed_experts": 4}),
    "minimax-m2": ("MiniMaxM2Config", {**EXPERTS, "head_dim": 24, "num_local_experts": 4}),
    "deepseek-v2": ("DeepseekV2Config", LATENT),
    "deepseek-v3": ("DeepseekV3Config", LATENT),
    "deepseek-v3.2": ("DeepseekV32Config", {**LATENT, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8}),
    "kimi-linear": (
        "KimiLinearConfig",
        {**LATENT, "q_lora_rank": None, "linear_head_dim": 16, "linear_num_heads": 4, "layer_types": LINEAR_LIST,
         "num_experts": 4, "num_experts_per_token": 2, "num_expert_group": 1},
    ),
    "qwen3-next": (
        "Qwen3NextConfig", {**DELTA, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32}
    ),
    "qwen3.5": ("Qwen3_5TextConfig", DELTA),
    "qwen3.5-moe": (
        "Qwen3_5MoeTextConfig", {**DELTA, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32}
    ),
    "granite-4": (
        "GraniteMoeHybridConfig",
        {**MIXER, "layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 0},
    ),
    "bamba": ("BambaConfig", {**MIXER, "attn_layer_indices": [1]}),
    "falcon-h1": ("FalconH1Config", {**MIXER, "mamba_d_ssm": 128}),
    "nemotron-h": (
        "NemotronHConfig",
        {"head_dim": 24, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 24, "n_groups": 2,
         "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]},
    ),
    "jamba": ("JambaConfig", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_dt_rank": 4}),
    "mamba": ("MambaConfig", {"intermediate_size": 128}),
    "falcon-mamba": ("FalconMambaConfig", {"intermediate_size": 128}),
    "mamba2": (
        "Mamba2Config",
        {"intermediate_size": 128, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 24},
    ),
}  # fmt: skip
"""Configuration class and what differs from BASE."""


SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
DEEPSEEK_V4 = {
    **EXPERTS, "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 64, "q_lora_rank": 32, "o_groups": 2,
    "o_lora_rank": 16, "sliding_window": 32, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 8,
    "n_routed_experts": 4, "max_position_embeddings": 4096, "layer_types": ["sliding_attention", SPARSE, HEAVY, SPARSE],
    "compress_rates": {SPARSE: 4, HEAVY: 16},
}  # fmt: skip
NESTED = {
    "gemma3": ("Gemma3Config", {**WINDOW, "num_hidden_layers": 8}),
    "llama4": ("Llama4Config", {"head_dim": 16, "attention_chunk_size": 16}),
    "qwen3.5": ("Qwen3_5Config", DELTA),
    "qwen3.5-moe": ("Qwen3_5MoeConfig", DELTA),
}


def configuration(kind: str, changes: dict[str, object]):
    return getattr(transformers, kind)(**{**BASE, **changes})


def model_of(config):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def cache_of(model, tokens: int = TOKENS):
    with torch.no_grad():
        output = model(torch.randint(3, 300, (1, tokens)), use_cache=True)
    return output.past_key_values if "past_key_values" in output else output.cache_params


def expected(arrays: list[CacheArray]) -> Counter[str]:
    """Elements by kind of a layer's arrays, as this package describes them."""
    counted: Counter[str] = Counter()
    for array in arrays:
        size = math.prod(axis.size for axis in array.axes)
        if array.tokens is not None:
            counted["per token"] += size
            match array.tokens.reach:
                case WindowReach(tokens) | ChunkReach(tokens):
                    counted["tokens kept"] = min(TOKENS, tokens - 1)
                case FullReach():
                    counted["tokens kept"] = TOKENS
        else:
            counted["channels" if array.part.startswith("conv") else "recurrent"] += (
                array.axes[0].size if array.part.startswith("conv") else size
            )
    return counted


def found(layer) -> Counter[str]:
    """The same of a layer of transformers' cache."""
    counted: Counter[str] = Counter()
    for name in ("keys", "values", "indexer_keys"):
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.dim() > 1:
            counted["per token"] += tensor.shape[-1] * (tensor.shape[1] if tensor.dim() == 4 else 1)
            counted["tokens kept"] = tensor.shape[-2]
    for state in (getattr(layer, "conv_states", None) or {}).values():
        counted["channels"] += state.shape[1]
    for state in (getattr(layer, "recurrent_states", None) or {}).values():
        counted["recurrent"] += state.numel()
    return counted


@pytest.mark.parametrize("name", TINY)
def test_a_saved_model_says_what_transformers_caches(name, tmp_path):
    model = model_of(configuration(*TINY[name]))
    model.save_pretrained(tmp_path)
    read, cache = load(tmp_path), cache_of(model)
    assert read.num_layers == len(cache.layers)
    for index, layer in enumerate(cache.layers):
        arrays = [array for ours in read.layers() if ours.index == index for array in ours.spec.arrays()]
        assert found(layer) == expected(arrays), f"layer {index}"


@pytest.mark.parametrize("name", TINY)
def test_a_configuration_saved_without_a_model_says_the_same(name, tmp_path):
    config = configuration(*TINY[name])
    model_of(config).save_pretrained(tmp_path / "model")
    configuration(*TINY[name]).save_pretrained(tmp_path / "configuration")
    assert describe(tmp_path / "configuration").architecture == config.model_type
    assert load(tmp_path / "configuration", dtype="float32").fingerprint == load(tmp_path / "model").fingerprint


@pytest.mark.parametrize("name", NESTED)
def test_a_saved_multimodal_configuration_says_what_its_text_part_says(name, tmp_path):
    kind, changes = NESTED[name]
    outer = getattr(transformers, kind)(text_config={**BASE, **changes})
    outer.save_pretrained(tmp_path / "outer")
    outer.text_config.save_pretrained(tmp_path / "text")
    assert load(tmp_path / "outer").fingerprint == load(tmp_path / "text").fingerprint


@pytest.fixture(scope="module")
def deepseek_v4(tmp_path_factory):
    """A tiny DeepSeek V4 in bfloat16, as loaded from disk, and its folder."""
    folder = tmp_path_factory.mktemp("deepseek-v4")
    model_of(configuration("DeepseekV4Config", DEEPSEEK_V4)).to(torch.bfloat16).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval(), folder


@pytest.mark.parametrize("tokens", [3, 4, 15, 16, 70])
def test_every_tensor_of_a_deepseek_v4_cache_has_its_array(tokens, deepseek_v4):
    model, folder = deepseek_v4
    arrays = {(layer.name, array.part): array for layer in load(folder).layers() for array in layer.spec.arrays()}
    seen = set()
    for index, layer in enumerate(cache_of(model, tokens).layers):
        for key, tensor, length in deepseek_v4_tensors(f"model.layers.{index}.self_attn", layer, tokens):
            seen.add(key)
            assert tensor.shape[-2] == length, key
            assert (tensor.shape[-1], str(tensor.dtype)) == (
                arrays[key].axes[-1].size,
                f"torch.{arrays[key].dtype.name}",
            )
    without_overlap = {key for key in arrays if not key[1].startswith("overlap")}
    assert seen == (set(arrays) if tokens >= 4 else without_overlap)


def deepseek_v4_tensors(name, layer, tokens):
    """Array name, tensor and expected length along tokens, entries or slots, of one layer's cache."""
    yield (name, "latent"), layer.keys, min(tokens, 31)
    rate = getattr(layer, "compress_rate", 0)
    for part in getattr(layer, "compressed_kv", {}):
        inner = f"{name}.{part}"
        yield (inner, "latent"), layer.compressed_kv[part], tokens // rate
        for states, length in (("buffer", tokens % rate), ("overlap", rate)):
            for side in ("kv", "gate"):
                tensor = getattr(layer, f"{states}_{side}", {}).get(part)
                if tensor is not None:
                    yield (f"{inner}.state", f"{states}.{side}"), tensor, length
