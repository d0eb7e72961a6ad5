import pytest

from kvweave.errors import ConfigurationError
from kvweave.models import CacheOptions, from_config, load

FLASH = "deepseek-v4-flash"
KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def shapes(model, arrays_of, layer: int) -> dict[tuple[str, str], tuple[int, ...]]:
    prefix = f"model.layers.{layer}."
    return {
        (name.removeprefix(prefix), part): tuple(axis.size for axis in array.axes)
        for (name, part), array in arrays_of(model).items()
        if name.startswith(prefix)
    }


def saved_form(published) -> dict[str, object]:
    config = published(FLASH, compress_ratios=...)
    ratios = published(FLASH)["compress_ratios"]
    config["layer_types"] = [KINDS[ratio] for ratio in ratios[:43]]
    config["compress_rates"] = {KINDS[4]: 4, KINDS[128]: 128}
    return config


def test_a_windowed_layer_keeps_one_latent(arrays_of):
    assert shapes(load(FLASH), arrays_of, 0) == {("self_attn", "latent"): (512,)}


def test_a_sparse_layer_keeps_window_entries_indexer_and_both_open_groups(arrays_of):
    assert shapes(load(FLASH), arrays_of, 2) == {
        ("self_attn", "latent"): (512,),
        ("self_attn.compressor", "latent"): (512,),
        ("self_attn.indexer", "latent"): (128,),
        ("self_attn.compressor.state", "buffer.kv"): (4, 1024),
        ("self_attn.compressor.state", "buffer.gate"): (4, 1024),
        ("self_attn.compressor.state", "overlap.kv"): (4, 512),
        ("self_attn.compressor.state", "overlap.gate"): (4, 512),
        ("self_attn.indexer.state", "buffer.kv"): (4, 256),
        ("self_attn.indexer.state", "buffer.gate"): (4, 256),
        ("self_attn.indexer.state", "overlap.kv"): (4, 128),
        ("self_attn.indexer.state", "overlap.gate"): (4, 128),
    }


def test_a_heavily_compressed_layer_has_no_indexer_and_no_overlap(arrays_of):
    assert shapes(load(FLASH), arrays_of, 3) == {
        ("self_attn", "latent"): (512,),
        ("self_attn.compressor", "latent"): (512,),
        ("self_attn.compressor.state", "buffer.kv"): (128, 512),
        ("self_attn.compressor.state", "buffer.gate"): (128, 512),
    }


def test_entries_stand_for_4_and_128_tokens_and_windows_see_128(arrays_of):
    arrays = arrays_of(load(FLASH))
    assert arrays["model.layers.2.self_attn.compressor", "latent"].tokens.tokens_per_entry == 4
    assert arrays["model.layers.3.self_attn.compressor", "latent"].tokens.tokens_per_entry == 128
    assert arrays["model.layers.3.self_attn", "latent"].tokens.reach.tokens == 128


def test_nothing_is_split_by_tensor_or_context_parallelism(arrays_of):
    arrays = arrays_of(load(FLASH)).values()
    assert {axis.units for array in arrays for axis in array.axes} == {0}
    assert {array.tokens.dcp_sharded for array in arrays if array.tokens} == {False}


@pytest.mark.parametrize(
    ("preset", "layers"),
    [(FLASH, {"window.128": 43, "rate.4": 42, "rate.128": 20, "state": 62}),
     ("deepseek-v4-pro", {"window.128": 61, "rate.128": 31, "rate.4": 60, "state": 91})],
)  # fmt: skip
def test_groups_of_the_published_models(preset, layers):
    assert {group.name: len(group.layers) for group in load(preset).groups} == layers


def test_both_forms_of_the_file_mean_the_same_cache(published):
    assert from_config(saved_form(published), FLASH) == load(FLASH)


def test_only_the_overlap_gates_are_float32_in_a_bfloat16_model(arrays_of):
    dtypes = {(part, array.dtype.name) for (_, part), array in arrays_of(load(FLASH)).items()}
    assert {part for part, name in dtypes if name == "float32"} == {"overlap.gate"}
    assert ("overlap.gate", "bfloat16") not in dtypes


def test_a_smaller_cache_dtype_leaves_the_open_groups_alone(arrays_of):
    arrays = arrays_of(load(FLASH, cache_dtype="fp8_e4m3"))
    assert arrays["model.layers.2.self_attn.compressor", "latent"].dtype.name == "fp8_e4m3"
    assert arrays["model.layers.2.self_attn.compressor.state", "buffer.kv"].dtype.name == "bfloat16"


def test_the_last_ratio_is_the_prediction_layers(arrays_of):
    extra = set(arrays_of(load(FLASH, mtp=True))) - set(arrays_of(load(FLASH)))
    assert extra == {("model.layers.43.self_attn", "latent")}


def test_the_saved_form_does_not_know_the_prediction_layers_kind(published):
    with pytest.raises(ConfigurationError, match="stands in compress_ratios only"):
        from_config(saved_form(published), "m", CacheOptions(mtp=True))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"compress_ratios": [0] * 42}, "42 entries for 43 layers and 1 prediction layers"),
        ({"compress_ratios": [8] * 44}, r"compress_ratios has \[8\]; this family has 0, 4 and 128"),
        ({"compress_ratios": ...}, r"compress_ratios \(or layer_types\) is missing"),
        ({"index_head_dim": ...}, "index_head_dim is missing"),
        ({"sliding_window": None}, "sliding_window is null"),
        ({"compress_ratios": ..., "layer_types": [KINDS[4]] * 43}, "compress_rates is missing"),
        ({"compress_ratios": ..., "layer_types": ["full_attention"] * 43}, r"layer_types\[0\] is 'full_attention'"),
    ],
    ids=["short", "unknown ratio", "neither form", "indexer size", "window", "rates", "kind"],
)
def test_a_file_that_does_not_say_enough_is_refused(changes, problem, published):
    with pytest.raises(ConfigurationError, match=problem):
        from_config(published(FLASH, **changes), "m")


def test_the_latent_of_v3_is_refused_as_a_dtype():
    with pytest.raises(ConfigurationError, match="fp8_ds_mla"):
        load(FLASH, cache_dtype="fp8_ds_mla")
