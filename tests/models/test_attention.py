import pytest

from kvweave.core.spec import ChunkedLocalAttentionSpec, SlidingWindowSpec
from kvweave.errors import ConfigurationError
from kvweave.models import CacheOptions, from_config, load


def sliding(model) -> list[int]:
    limited = SlidingWindowSpec | ChunkedLocalAttentionSpec
    return sorted(layer.index for layer in model.layers() if isinstance(layer.spec, limited))


@pytest.mark.parametrize(
    ("preset", "heads", "size"),
    [
        ("llama-3.1-8b", 8, 128), ("smollm2-135m", 3, 64), ("qwen2.5-0.5b-instruct", 2, 64), ("qwen3-0.6b", 8, 128),
        ("qwen3-32b", 8, 128), ("qwen3-235b-a22b", 4, 128), ("mistral-small-24b-2501", 8, 128), ("gemma-2-9b", 8, 256),
        ("gemma-3-27b", 16, 128), ("gpt-oss-20b", 8, 64), ("glm-4.5-air", 8, 128), ("minimax-m2", 8, 128),
    ],
)  # fmt: skip
def test_heads_and_head_size_are_the_files(preset, heads, size):
    specs = {(layer.spec.num_kv_heads, layer.spec.head_size) for layer in load(preset).layers()}
    assert specs == {(heads, size)}


def test_each_layer_keeps_k_and_v_of_all_heads(arrays_of):
    arrays = arrays_of(load("llama-3.1-8b"))
    for part in ("k", "v"):
        axes = arrays["model.layers.31.self_attn", part].axes
        assert [(axis.name, axis.size, axis.units) for axis in axes] == [("head", 8, 8), ("dim", 128, 0)]


@pytest.mark.parametrize(
    "preset", ["qwen3-0.6b", "gemma-2-9b", "gemma-3-27b", "gpt-oss-20b", "minimax-m2", "qwen3-next-80b-a3b"]
)
def test_a_family_that_states_its_head_size_does_not_derive_it(preset, published):
    with pytest.raises(ConfigurationError, match="head_dim is missing"):
        from_config(published(preset, head_dim=...), preset)


@pytest.mark.parametrize("preset", ["llama-3.3-70b", "llama-4-scout-17b-16e", "mistral-small-24b-2501"])
def test_a_family_that_derives_its_head_size_divides(preset, published):
    config = published(preset, head_dim=..., hidden_size=4096, num_attention_heads=32)
    assert next(from_config(config, preset).layers()).spec.head_size == 128


def test_a_hidden_size_that_does_not_divide_is_refused_with_both(published):
    config = published("smollm2-135m", hidden_size=577)
    with pytest.raises(
        ConfigurationError, match="hidden_size 577 is not a multiple of num_attention_heads 9; state head_dim"
    ):
        from_config(config, "m")


def test_heads_that_kv_heads_do_not_divide_are_refused_with_both(published):
    with pytest.raises(ConfigurationError, match="num_attention_heads 32 is not a multiple of num_key_value_heads 5"):
        from_config(published("llama-3.1-8b", num_key_value_heads=5), "m")


def test_missing_kv_heads_mean_all_heads_in_llama_only(published):
    llama = from_config(published("llama-3.1-8b", num_key_value_heads=...), "m")
    assert next(llama.layers()).spec.num_kv_heads == 32
    with pytest.raises(ConfigurationError, match="num_key_value_heads is missing"):
        from_config(published("qwen3-0.6b", num_key_value_heads=...), "m")


def test_null_kv_heads_mean_all_heads(published):
    model = from_config(published("qwen3-0.6b", num_key_value_heads=None), "m")
    assert next(model.layers()).spec.num_kv_heads == 16


def test_gemma2_slides_on_even_layers():
    assert sliding(load("gemma-2-9b")) == list(range(0, 42, 2))


def test_gemma3_slides_on_all_but_every_sixth_layer():
    assert sliding(load("gemma-3-27b")) == [layer for layer in range(62) if layer % 6 != 5]
    assert len(sliding(load("gemma-3-27b"))) == 52


def test_gemma3s_own_list_and_its_rule_agree(published):
    listed, ruled = load("gemma-3-270m"), from_config(published("gemma-3-270m", layer_types=...), "gemma-3-270m")
    assert listed == ruled


def test_gemma3_takes_a_stated_period(published):
    assert sliding(from_config(published("gemma-3-27b", sliding_window_pattern=2), "m")) == list(range(0, 62, 2))


def test_llama4_chunks_all_but_every_fourth_layer():
    model = load("llama-4-scout-17b-16e")
    assert sliding(model) == [layer for layer in range(48) if layer % 4 != 3]
    assert [group.name for group in model.groups] == ["full", "chunk.8192"]


@pytest.mark.parametrize(
    ("changes", "chunked"),
    [
        ({"no_rope_layers": []}, 36), ({"no_rope_layers": [1, 0] * 24}, 24), ({"no_rope_layer_interval": 2}, 24),
        ({"attention_chunk_size": None}, 0), ({"layer_types": ["full_attention"] * 47 + ["chunked_attention"]}, 1),
    ],
    ids=["empty list", "list", "interval", "switched off", "layer types"],
)  # fmt: skip
def test_llama4_patterns_that_the_file_states(changes, chunked, published):
    assert len(sliding(from_config(published("llama-4-scout-17b-16e", **changes), "m"))) == chunked


def test_mistral_slides_everywhere_or_nowhere(published):
    assert len(sliding(load("mistral-7b-v0.1"))) == 32
    assert sliding(load("mistral-small-24b-2501")) == []
    with pytest.raises(ConfigurationError, match="sliding_window is missing; state a number, or null"):
        from_config(published("mistral-7b-v0.1", sliding_window=...), "m")


def test_mistrals_window_and_layer_types_must_agree(published):
    with pytest.raises(ConfigurationError, match=r"layer_types\[0\] is 'full_attention'"):
        from_config(published("mistral-7b-v0.1", layer_types=["full_attention"] * 32), "m")


@pytest.mark.parametrize(
    ("preset", "layers"),
    [
        ("qwen2.5-0.5b-instruct", [21, 22, 23]),
        ("qwen3-0.6b", list(range(20, 28))),
        ("qwen3-235b-a22b", list(range(94))),
    ],
    ids=["Qwen2 from max_window_layers", "Qwen3 likewise", "Qwen3-MoE everywhere"],
)
def test_qwen_windows_are_off_until_switched_on(preset, layers, published):
    assert sliding(load(preset)) == []
    limit = 21 if preset.startswith("qwen2") else 20
    config = published(preset, use_sliding_window=True, sliding_window=64, max_window_layers=limit)
    assert sliding(from_config(config, preset)) == layers


def test_qwen2_moe_has_a_rule_of_its_own(published):
    config = published("qwen2.5-0.5b-instruct", use_sliding_window=True, max_window_layers=5)
    config |= {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}
    assert sliding(from_config(config, "m")) == [0, 2, 4]


def test_a_sliding_layer_in_a_file_that_switches_windows_off_is_refused(published):
    with pytest.raises(
        ConfigurationError, match=r"layer_types\[0\] is 'sliding_attention'; this family has full_attention"
    ):
        from_config(published("qwen2.5-0.5b-instruct", layer_types=["sliding_attention"] * 24), "m")


def test_a_window_that_is_on_but_null_is_refused(published):
    with pytest.raises(ConfigurationError, match="sliding_window is null"):
        from_config(published("qwen3-0.6b", use_sliding_window=True, max_window_layers=1), "m")


def test_gpt_oss_alternates_with_or_without_its_list(published):
    listed, ruled = load("gpt-oss-120b"), from_config(published("gpt-oss-120b", layer_types=...), "gpt-oss-120b")
    assert listed == ruled
    assert sliding(listed) == list(range(0, 36, 2))


def test_minimax_m2s_hybrid_key_means_nothing_while_it_is_all_ones(published):
    assert sliding(load("minimax-m2")) == []
    with pytest.raises(ConfigurationError, match="attn_type_list has a 0"):
        from_config(published("minimax-m2", attn_type_list=[0] + [1] * 61), "m")
    with pytest.raises(ConfigurationError, match="sliding_window is 128; no window is known"):
        from_config(published("minimax-m2", sliding_window=128), "m")


def test_an_encoders_switch_is_refused(published):
    with pytest.raises(ConfigurationError, match="use_bidirectional_attention is True"):
        from_config(published("gemma-3-270m", use_bidirectional_attention=True), "m")


def test_glm_predicts_with_one_more_layer_only_when_mtp_is_on():
    names = {layer.name for layer in load("glm-4.5-air", mtp=True).layers()}
    assert names - {layer.name for layer in load("glm-4.5-air").layers()} == {"model.layers.46.self_attn"}


def test_a_family_without_prediction_layers_refuses_mtp(published):
    with pytest.raises(ConfigurationError, match="mtp is true; no prediction layers are known for this family"):
        from_config(published("llama-3.1-8b"), "m", CacheOptions(mtp=True))


def test_the_opaque_latent_dtype_is_refused_where_there_are_heads():
    with pytest.raises(ConfigurationError, match="cache_dtype is fp8_ds_mla"):
        load("llama-3.1-8b", cache_dtype="fp8_ds_mla")
