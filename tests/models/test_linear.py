import pytest

from kvweave.core.spec import MambaSpec
from kvweave.errors import ConfigurationError
from kvweave.models import from_config, load


def linear(model) -> list[int]:
    return sorted(layer.index for layer in model.layers() if isinstance(layer.spec, MambaSpec))


def axes(array) -> list[tuple[str, int, int]]:
    return [(axis.name, axis.size, axis.units) for axis in array.axes]


def test_qwen3_next_is_full_at_every_fourth_layer():
    assert linear(load("qwen3-next-80b-a3b")) == [layer for layer in range(48) if layer % 4 != 3]


def test_a_gated_delta_net_keeps_q_and_k_by_key_head_and_the_rest_by_value_head(arrays_of):
    arrays = arrays_of(load("qwen3.5-27b"))
    name = "model.layers.0.linear_attn"
    assert axes(arrays[name, "conv.q"]) == axes(arrays[name, "conv.k"]) == [("channel", 2048, 16), ("tap", 3, 0)]
    assert axes(arrays[name, "conv.v"]) == [("channel", 6144, 48), ("tap", 3, 0)]
    assert axes(arrays[name, "ssm"]) == [("head", 48, 48), ("dim", 128, 0), ("state", 128, 0)]


@pytest.mark.parametrize(
    ("preset", "dtype"),
    [
        ("qwen3-next-80b-a3b", "bfloat16"),
        ("qwen3.5-9b", "float32"),
        ("qwen3.5-35b-a3b", "float32"),
        ("kimi-linear-48b-a3b", "float32"),
    ],
)
def test_the_recurrent_states_dtype_is_the_familys(preset, dtype, arrays_of):
    arrays = arrays_of(load(preset))
    assert {array.dtype.name for (_, part), array in arrays.items() if part == "ssm"} == {dtype}
    assert {array.dtype.name for (_, part), array in arrays.items() if part != "ssm"} == {"bfloat16"}


def test_the_callers_recurrent_dtype_goes_before_the_files(arrays_of):
    arrays = arrays_of(load("qwen3.5-9b", ssm_dtype="float16"))
    assert arrays["model.layers.0.linear_attn", "ssm"].dtype.name == "float16"


def test_a_recurrent_dtype_that_is_not_known_is_refused(published):
    with pytest.raises(ConfigurationError, match="'float12' is not known"):
        from_config(published("qwen3.5-9b", mamba_ssm_dtype="float12"), "m")


def test_qwen35s_list_and_interval_agree(published):
    ruled = from_config(published("qwen3.5-27b", layer_types=...), "qwen3.5-27b")
    assert ruled == load("qwen3.5-27b")


def test_a_pattern_is_not_guessed(published):
    config = published("qwen3-next-80b-a3b", full_attention_interval=...)
    with pytest.raises(ConfigurationError, match=r"layer_types \(or full_attention_interval\) is missing"):
        from_config(config, "m")


def test_qwen35_predicts_with_full_attention_when_mtp_is_on():
    extra = {layer.name: layer for layer in load("qwen3.5-27b", mtp=True).layers()}["mtp.layers.0.self_attn"]
    assert (extra.index, extra.spec.num_kv_heads) == (63, 4)
    assert load("qwen3.5-27b", mtp=True).bytes_per_request() == load("qwen3.5-27b").bytes_per_request()


def test_qwen3_nexts_file_does_not_say_how_many_prediction_layers_it_has():
    with pytest.raises(ConfigurationError, match="num_nextn_predict_layers is missing"):
        load("qwen3-next-80b-a3b", mtp=True)


def test_kimi_linears_lists_count_from_one():
    full = [layer.index for layer in load("kimi-linear-48b-a3b").groups[0].layers]
    assert full == [3, 7, 11, 15, 19, 23, 26]


def test_kda_keeps_three_equal_convolutions_by_head_beside_latents(arrays_of):
    arrays = arrays_of(load("kimi-linear-48b-a3b"))
    for part in ("conv.q", "conv.k", "conv.v"):
        assert axes(arrays["model.layers.0.self_attn", part]) == [("channel", 4096, 32), ("tap", 3, 0)]
    assert axes(arrays["model.layers.0.self_attn", "ssm"]) == [("head", 32, 32), ("dim", 128, 0), ("state", 128, 0)]
    assert axes(arrays["model.layers.26.self_attn", "latent"]) == [("dim", 576, 0)]


@pytest.mark.parametrize(
    "full",
    [[4, 8, 12, 16, 20, 24], [4, 8, 12, 16, 20, 24, 27, 27], [0, 4, 8, 12, 16, 20, 24]],
    ids=["one missing", "one twice", "counted from zero"],
)
def test_kimi_linears_lists_must_be_each_layer_once(full, published):
    config = published("kimi-linear-48b-a3b")
    config["linear_attn_config"]["full_attn_layers"] = full
    with pytest.raises(ConfigurationError, match="each once; correct the lists"):
        from_config(config, "m")
