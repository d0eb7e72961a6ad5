import pytest

from kvweave.core.spec import FullAttentionSpec, MambaSpec
from kvweave.errors import ConfigurationError
from kvweave.models import CacheOptions, from_config, load


def attention(model) -> list[int]:
    return sorted(layer.index for layer in model.layers() if isinstance(layer.spec, FullAttentionSpec))


def mixers(model) -> list[int]:
    return sorted(layer.index for layer in model.layers() if isinstance(layer.spec, MambaSpec))


@pytest.mark.parametrize(
    ("preset", "layers"),
    [
        ("granite-4.0-h-tiny", [5, 15, 25, 35]), ("granite-4.0-h-small", [5, 15, 25, 35]), ("bamba-9b", [9, 18, 27]),
        ("jamba-1.5-mini", [4, 12, 20, 28]), ("jamba-v0.1", [4, 12, 20, 28]),
    ],
)  # fmt: skip
def test_attention_stands_where_the_file_puts_it_and_mamba_elsewhere(preset, layers):
    model = load(preset)
    assert attention(model) == layers
    assert mixers(model) == [layer for layer in range(model.num_layers) if layer not in layers]


@pytest.mark.parametrize(
    ("preset", "channels", "units"),
    [
        ("granite-4.0-h-tiny", 3072, 48), ("granite-4.0-h-small", 8192, 128), ("bamba-9b", 8192, 128),
        ("falcon-h1-7b", 3072, 24), ("falcon-h1-1.5b", 3072, 48), ("nemotron-3-nano-30b-a3b", 4096, 64),
        ("nemotron-h-8b", 8192, 128), ("nemotron-h-56b", 16384, 256), ("jamba-1.5-mini", 8192, 8192),
    ],
)  # fmt: skip
def test_the_inner_width_is_the_familys(preset, channels, units, arrays_of):
    widths = [array.axes[0] for (_, part), array in arrays_of(load(preset)).items() if part == "conv.x"]
    assert {(axis.size, axis.units) for axis in widths} == {(channels, units)}


def test_every_layer_of_falcon_h1_has_both():
    model = load("falcon-h1-7b")
    assert attention(model) == mixers(model) == list(range(44))


def test_falcon_h1_falls_back_to_expand_only_when_the_width_is_null(published):
    config = published("falcon-h1-7b", mamba_d_ssm=None, mamba_n_heads=48)
    assert (
        from_config(config, "m").bytes_per_request() == 2 * load("falcon-h1-7b").bytes_per_request() - 44 * 512 * 3 * 2
    )
    with pytest.raises(ConfigurationError, match=r"24 mamba heads of 128 make 3072, .* makes 6144"):
        from_config(published("falcon-h1-7b", mamba_d_ssm=None), "m")


def test_nemotrons_letters_are_layers_and_all_mixers_have_one_name():
    model = load("nemotron-3-nano-30b-a3b")
    assert attention(model) == [5, 12, 19, 26, 33, 42]
    assert len(mixers(model)) == 23
    assert {layer.name.split(".")[-1] for layer in model.layers()} == {"mixer"}


@pytest.mark.parametrize("preset", ["nemotron-h-8b", "nemotron-h-56b", "nemotron-3-nano-30b-a3b"])
def test_nemotrons_recurrent_state_is_float32_with_or_without_the_key(preset, published, arrays_of):
    for config in (published(preset), published(preset, mamba_ssm_cache_dtype=...)):
        arrays = arrays_of(from_config(config, preset))
        assert {array.dtype.name for (_, part), array in arrays.items() if part == "ssm"} == {"float32"}
        assert {array.dtype.name for (_, part), array in arrays.items() if part != "ssm"} == {"bfloat16"}


@pytest.mark.parametrize(
    ("preset", "key"), [("nemotron-h-8b", "attention_head_dim"), ("nemotron-3-nano-30b-a3b", "head_dim")]
)
def test_nemotrons_head_size_has_two_names_and_is_never_derived(preset, key, published):
    assert {layer.spec.head_size for layer in load(preset).groups[0].layers} == {128}
    with pytest.raises(ConfigurationError, match=r"head_dim \(or attention_head_dim\) is missing"):
        from_config(published(preset, **{key: ...}), "m")


def test_nemotron_predicts_with_its_own_pattern_when_mtp_is_on(published):
    config = published("nemotron-3-nano-30b-a3b", num_nextn_predict_layers=2, mtp_hybrid_override_pattern="*E")
    names = [layer.name for layer in from_config(config, "m", CacheOptions(mtp=True)).layers()]
    assert [name for name in names if name.startswith("mtp")] == ["mtp.layers.0.mixer", "mtp.layers.2.mixer"]


def test_mamba_keys_of_a_granite_without_mamba_layers_mean_nothing(published):
    config = published("granite-4.0-h-tiny", layer_types=["attention"] * 40, mamba_n_heads="none", mamba_d_state=-1)
    model = from_config(config, "granite-4.0-micro")
    assert (len(attention(model)), model.bytes_per_request()) == (40, 0)


@pytest.mark.parametrize("preset", ["granite-4.0-h-tiny", "bamba-9b", "falcon-h1-7b"])
def test_an_automatic_head_size_is_the_inner_width_over_the_heads(preset, published):
    assert from_config(published(preset, mamba_d_head="auto"), preset) == load(preset)


@pytest.mark.parametrize(
    ("preset", "changes", "problem"),
    [
        ("granite-4.0-h-tiny", {"layer_types": ...}, "layer_types is missing"),
        ("granite-4.0-h-tiny", {"mamba_expand": 3}, "mamba_expand x hidden_size makes 4608"),
        ("bamba-9b", {"attn_layer_indices": ...}, "attn_layer_indices is missing"),
        ("bamba-9b", {"attn_layer_indices": [32]}, r"attn_layer_indices\[0\] is 32; .* 0 to 31"),
        ("bamba-9b", {"mamba_n_groups": 3}, "128 mamba heads are not a multiple of 3 groups"),
        ("falcon-h1-7b", {"attn_layer_indices": [1]}, "in this family every layer has attention"),
        ("jamba-v0.1", {"attn_layer_offset": 8}, "attn_layer_offset 8 is not below attn_layer_period 8"),
        ("jamba-v0.1", {"attn_layer_offset": ...}, "attn_layer_offset is missing"),
        ("jamba-v0.1", {"sliding_window": 64}, "sliding_window is 64; no window is known"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M-X"}, "must be letters of M"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M-M*"}, "num_hidden_layers is 52, the pattern has 4"),
        ("nemotron-h-8b", {"hybrid_override_pattern": ...}, r"\(or layers_block_type\) is missing"),
        ("nemotron-h-8b", {"n_groups": 7}, "128 mamba heads are not a multiple of 7 groups"),
    ],
)  # fmt: skip
def test_a_file_that_contradicts_itself_or_lacks_something_is_refused(preset, changes, problem, published):
    with pytest.raises(ConfigurationError, match=problem):
        from_config(published(preset, **changes), "m")
