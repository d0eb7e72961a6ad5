import json
import math

import pytest

from kvweave.errors import ConfigurationError
from kvweave.models import describe, from_config, load, preset, presets

WRONG = {"NaN": math.nan, "negative": -3, "text": "many", "object": {"a": 1}, "missing": ...}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "my-llama"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(preset("llama-3.1-8b").config))
    return path


@pytest.mark.parametrize("name", ["deepseek-v3", "DeepSeek-V3"])
def test_a_presets_name_is_taken_in_any_case(name):
    assert load(name).name == "deepseek-v3"


def test_a_folder_a_file_and_their_text_mean_the_same_model(folder):
    models = [load(what) for what in (folder, folder / "config.json", str(folder), str(folder / "config.json"))]
    assert {model.name for model in models} == {"my-llama"}
    assert {model.fingerprint for model in models} == {load("llama-3.1-8b").fingerprint}


def test_a_file_of_the_users_own_is_not_called_verified(folder):
    assert describe(folder).verified is None


def test_something_that_does_not_exist_is_refused_with_close_presets():
    with pytest.raises(
        ConfigurationError, match="'deepsek-v3' is no preset, file or folder; close presets: deepseek-v3"
    ):
        load("deepsek-v3")


@pytest.mark.parametrize("what", ["", "x" * 5000, "a\0b"], ids=["empty", "very long", "with NUL"])
def test_text_that_names_nothing_is_refused(what):
    with pytest.raises(ConfigurationError, match=r"^model: "):
        load(what)


def test_a_folder_without_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"has no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is no JSON"), (b"\xff\xfe", "is no JSON"), (b"[" * 100_000, "is no JSON"), (b"[1]", "holds a list"),
        (b"null", "holds a NoneType"),
    ],
    ids=["torn", "no text", "too deep", "a list", "null"],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_refused(content, problem, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem):
        load(tmp_path)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("name", presets())
def test_each_wrong_value_is_refused_by_name_or_has_no_meaning(name, wrong, published):
    config = preset(name).config
    keys = config.get("text_config", config)
    answers = {key: answer(published(name, **{key: wrong}), name) for key in keys}
    messages = [message for message in answers.values() if message]
    assert all(message.startswith((f"{name}: ", "dtype: ")) for message in messages)
    assert messages


def answer(config, name) -> str:
    """The refusal, or empty text."""
    try:
        from_config(config, name)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_options_reach_the_specs(folder):
    model = load(folder, dtype="float16", cache_dtype="fp8_e4m3")
    assert {layer.spec.dtype.name for layer in model.layers()} == {"fp8_e4m3"}


@pytest.mark.parametrize("place", ["top", "text part"])
def test_the_dtype_may_stand_beside_or_inside_the_text_part(place, published):
    config = published("gemma-3-27b")
    values = config if place == "top" else config["text_config"]
    del config["torch_dtype"]
    values["dtype"] = "float32"
    assert {layer.spec.dtype.name for layer in from_config(config, "m").layers()} == {"float32"}
