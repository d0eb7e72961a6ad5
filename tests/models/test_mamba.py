import pytest

from kvweave.errors import ConfigurationError
from kvweave.models import CacheOptions, from_config, load


def axes(array) -> list[tuple[str, int, int]]:
    return [(axis.name, axis.size, axis.units) for axis in array.axes]


def test_mamba1_keeps_channels_of_its_stated_width(arrays_of):
    arrays = arrays_of(load("falcon-mamba-7b"))
    assert axes(arrays["model.layers.63.mamba", "conv.x"]) == [("channel", 8192, 8192), ("tap", 3, 0)]
    assert axes(arrays["model.layers.63.mamba", "ssm"]) == [("channel", 8192, 8192), ("state", 16, 0)]
    assert len(arrays) == 128


def test_mamba1s_width_is_not_derived_from_expand(published):
    with pytest.raises(ConfigurationError, match="intermediate_size is missing"):
        from_config(published("falcon-mamba-7b", intermediate_size=...), "m")


def test_mamba2_keeps_sections_by_head_and_by_group(arrays_of):
    arrays = arrays_of(load("mamba-codestral-7b-v0.1"))
    name = "model.layers.0.mamba"
    assert axes(arrays[name, "conv.x"]) == [("channel", 8192, 128), ("tap", 3, 0)]
    assert axes(arrays[name, "conv.b"]) == axes(arrays[name, "conv.c"]) == [("channel", 1024, 8), ("tap", 3, 0)]
    assert axes(arrays[name, "ssm"]) == [("head", 128, 128), ("dim", 64, 0), ("state", 128, 0)]


def test_the_files_dtype_is_that_of_all_states(arrays_of):
    assert {array.dtype.name for array in arrays_of(load("mamba-130m-hf")).values()} == {"float32"}


@pytest.mark.parametrize(
    "preset", ["falcon-mamba-7b", "mamba-codestral-7b-v0.1", "granite-4.0-h-tiny", "qwen3.5-9b", "kimi-linear-48b-a3b"]
)
def test_speculative_tokens_add_taps_and_nothing_else(preset, arrays_of):
    plain, speculating = arrays_of(load(preset)), arrays_of(load(preset, speculative_tokens=2))
    for key, array in plain.items():
        widened = [(axis.name, axis.size + 2 * (axis.name == "tap"), axis.units) for axis in array.axes]
        assert axes(speculating[key]) == widened


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"intermediate_size": 4096}, "128 mamba heads of 64 make 8192, intermediate_size makes 4096"),
        ({"n_groups": 7}, "128 mamba heads are not a multiple of 7 groups"),
        ({"conv_kernel": 1}, "convolution kernel is 1 and keeps no state"),
        ({"num_heads": ...}, "num_heads is missing"),
    ],
    ids=["width", "groups", "kernel", "heads"],
)
def test_sizes_that_contradict_one_another_are_refused(changes, problem, published):
    with pytest.raises(ConfigurationError, match=problem):
        from_config(published("mamba-codestral-7b-v0.1", **changes), "m")


@pytest.mark.parametrize("preset", ["mamba-130m-hf", "mamba-codestral-7b-v0.1"])
def test_mtp_is_refused(preset, published):
    with pytest.raises(ConfigurationError, match="mtp is true"):
        from_config(published(preset), "m", CacheOptions(mtp=True))
