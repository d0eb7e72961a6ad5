import pytest

from kvweave.errors import ConfigurationError
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheOptions, CacheSetting, dtype_of_file


def names(setting: CacheSetting) -> tuple[str, str, str, str]:
    return (
        setting.model_dtype.name,
        setting.attention_dtype.name,
        setting.conv_dtype.name,
        setting.ssm_dtype().name,
    )


def test_everything_has_the_files_dtype_unless_stated():
    assert names(CacheSetting.resolve(CacheOptions(), "float16")) == ("float16",) * 4


def test_bfloat16_is_assumed_where_nobody_states_a_dtype():
    assert names(CacheSetting.resolve(CacheOptions(), None)) == ("bfloat16",) * 4


def test_the_callers_dtype_goes_before_the_files():
    assert names(CacheSetting.resolve(CacheOptions(dtype="float32"), "bfloat16")) == ("float32",) * 4


def test_attention_conv_and_recurrent_dtypes_are_stated_apart():
    options = CacheOptions(cache_dtype="fp8_e4m3", conv_dtype="float16", ssm_dtype="float32")
    assert names(CacheSetting.resolve(options, "bfloat16")) == ("bfloat16", "fp8_e4m3", "float16", "float32")


def test_the_recurrent_dtype_is_the_callers_then_the_familys_then_the_conv_states():
    assert CacheSetting.resolve(CacheOptions(ssm_dtype="float16"), None).ssm_dtype("float32").name == "float16"
    assert CacheSetting.resolve(CacheOptions(), None).ssm_dtype("float32").name == "float32"
    assert CacheSetting.resolve(CacheOptions(conv_dtype="float16"), None).ssm_dtype().name == "float16"


@pytest.mark.parametrize("option", ["dtype", "cache_dtype", "conv_dtype", "ssm_dtype"])
def test_an_unknown_dtype_is_refused_with_the_option_that_asked_for_it(option):
    with pytest.raises(ConfigurationError, match=f"^{option}: .*'bf17' is not known; use one of"):
        CacheSetting.resolve(CacheOptions(**{option: "bf17"}), None)


@pytest.mark.parametrize("tokens", [-1, 1.5, True, "2"], ids=repr)
def test_speculative_tokens_are_a_whole_number(tokens):
    with pytest.raises(ConfigurationError, match=f"speculative_tokens: {tokens!r}"):
        CacheOptions(speculative_tokens=tokens)


def test_mtp_is_true_or_false():
    with pytest.raises(ConfigurationError, match="mtp: 1 is neither true nor false"):
        CacheOptions(mtp=1)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ({"dtype": "float16", "torch_dtype": "float32"}, "float16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({}, None),
    ],
    ids=["today's key first", "older key", "neither"],
)
def test_the_files_dtype_has_two_names(values, dtype):
    assert dtype_of_file(ConfigReader(values, "a-model")) == dtype
