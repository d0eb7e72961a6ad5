import json

import pytest

from kvweave.errors import ConfigurationError
from kvweave.models import from_config, load

MLA = ["deepseek-v2-lite", "deepseek-v3", "deepseek-r1", "deepseek-v3.2", "kimi-k2-instruct"]


@pytest.mark.parametrize("preset", MLA)
def test_every_layer_keeps_latent_and_rotated_part_once_for_all_heads(preset, arrays_of):
    latents = [array for (_, part), array in arrays_of(load(preset)).items() if part == "latent"]
    assert len(latents) == load(preset).num_layers
    assert {(array.axes[0].name, array.axes[0].size, array.axes[0].units) for array in latents} == {("dim", 576, 0)}


def test_v32_keeps_an_indexer_key_beside_each_latent(arrays_of):
    arrays = arrays_of(load("deepseek-v3.2"))
    indexers = {name: array for (name, part), array in arrays.items() if part == "indexer"}
    assert list(indexers)[60] == "model.layers.60.self_attn.indexer"
    assert {array.entry_bytes for array in indexers.values()} == {256}
    assert [group.name for group in load("deepseek-v3.2").groups] == ["full"]


def test_an_indexer_key_in_a_v3_file_means_v32(published):
    config = published("deepseek-v3", index_topk=2048, index_head_dim=128)
    assert from_config(config, "m").bytes_per_token() == load("deepseek-v3.2").bytes_per_token()


def test_v32_needs_its_indexers_size(published):
    with pytest.raises(ConfigurationError, match="index_head_dim is missing"):
        from_config(published("deepseek-v3.2", index_head_dim=...), "m")


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim"])
def test_the_latents_two_sizes_are_not_guessed(key, published):
    with pytest.raises(ConfigurationError, match=f"{key} is missing"):
        from_config(published("deepseek-v3", **{key: ...}), "m")


@pytest.mark.parametrize(("preset", "added"), [("deepseek-v3", 1152), ("deepseek-v3.2", 1152 + 256)])
def test_prediction_layers_add_their_cache_only_when_mtp_is_on(preset, added):
    assert load(preset, mtp=True).bytes_per_token() - load(preset).bytes_per_token() == added
    assert "model.layers.61.self_attn" in {layer.name for layer in load(preset, mtp=True).layers()}


@pytest.mark.parametrize(
    ("preset", "problem"), [("kimi-k2-instruct", "is 0 and mtp is true"), ("deepseek-v2-lite", "is missing")]
)
def test_mtp_is_refused_for_a_file_without_prediction_layers(preset, problem):
    with pytest.raises(ConfigurationError, match=f"num_nextn_predict_layers {problem}"):
        load(preset, mtp=True)


def test_the_opaque_latent_is_one_element_of_656_bytes(arrays_of):
    arrays = arrays_of(load("deepseek-v3.2", cache_dtype="fp8_ds_mla"))
    assert arrays["model.layers.0.self_attn", "latent"].entry_bytes == 656
    assert arrays["model.layers.0.self_attn.indexer", "indexer"].dtype.name == "bfloat16"


def test_the_opaque_latent_fits_one_size_only(published, tmp_path):
    config = published("deepseek-v3", kv_lora_rank=256)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=r"fp8_ds_mla holds 512 \+ 64 elements, this latent has 256 \+ 64"):
        load(tmp_path, cache_dtype="fp8_ds_mla")
