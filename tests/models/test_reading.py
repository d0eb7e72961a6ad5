import math

import pytest

from kvweave.errors import ConfigurationError
from kvweave.models.reading import ConfigReader


def reader(**values: object) -> ConfigReader:
    return ConfigReader(values, "a-model")


WRONG_COUNTS = {
    "NaN": math.nan, "infinity": math.inf, "negative": -8, "zero": 0, "fraction": 8.0, "text": "8", "true": True,
    "list": [8], "enormous": 2**40,
}  # fmt: skip


@pytest.mark.parametrize("value", WRONG_COUNTS.values(), ids=WRONG_COUNTS)
def test_a_wrong_count_is_refused_with_model_key_value_and_remedy(value):
    with pytest.raises(ConfigurationError) as refusal:
        reader(head_dim=value).count("head_dim")
    message = str(refusal.value)
    assert message.startswith(f"a-model: head_dim is {value!r}; it must be a whole number")


@pytest.mark.parametrize(("values", "state"), [({}, "missing"), ({"head_dim": None}, "null")], ids=["missing", "null"])
def test_a_count_that_is_not_there_is_refused_with_its_names(values, state):
    with pytest.raises(ConfigurationError, match=rf"head_dim \(or attention_head_dim\) is {state}; add it"):
        reader(**values).count("head_dim", "attention_head_dim")


def test_two_names_of_one_thing_may_agree_but_not_contradict():
    assert reader(head_dim=8, attention_head_dim=8).count("head_dim", "attention_head_dim") == 8
    with pytest.raises(ConfigurationError, match="head_dim=8 and attention_head_dim=9"):
        reader(head_dim=8, attention_head_dim=9).count("head_dim", "attention_head_dim")


def test_an_optional_count_may_be_missing_and_a_nullable_one_only_null():
    assert reader().optional_count("sliding_window") is None
    assert reader(sliding_window=None).nullable_count("sliding_window") is None
    with pytest.raises(ConfigurationError, match="sliding_window is missing; state a number, or null"):
        reader().nullable_count("sliding_window")


def test_a_number_may_be_zero():
    assert reader(offset=0).number("offset") == 0
    with pytest.raises(ConfigurationError, match="offset is -1"):
        reader(offset=-1).number("offset")


def test_more_layers_than_any_model_has_are_refused():
    with pytest.raises(ConfigurationError, match=r"num_hidden_layers is 5000; .* to 4096"):
        reader(num_hidden_layers=5000).layer_count()


@pytest.mark.parametrize(("value", "seen"), [(True, True), (False, False), (None, True)])
def test_a_switch_is_what_the_file_says_or_the_familys_value(value, seen):
    assert reader(on=value).switch("on", otherwise=True) is seen


@pytest.mark.parametrize("value", [1, "false", [True]], ids=repr)
def test_a_switch_that_is_not_true_or_false_is_refused(value):
    with pytest.raises(ConfigurationError, match="must be true or false"):
        reader(on=value).switch("on", otherwise=True)


def test_text_and_section_refuse_other_kinds():
    with pytest.raises(ConfigurationError, match="dtype is 16; it must be text"):
        reader(dtype=16).text("dtype")
    with pytest.raises(ConfigurationError, match="text_config is 3; it must be an object"):
        reader(text_config=3).section("text_config")
    with pytest.raises(ConfigurationError, match="text_config is missing"):
        reader().section("text_config")


def test_an_error_inside_a_section_names_the_section():
    with pytest.raises(ConfigurationError, match="a-model: text_config: head_dim is missing"):
        reader(text_config={}).section("text_config").count("head_dim")


def test_a_list_of_words_takes_older_names_and_refuses_unknown_ones():
    kinds = ("full_attention", "linear_attention")
    assert reader(layer_types=["mamba", "attention"]).words("layer_types", kinds, 2) == (kinds[1], kinds[0])
    with pytest.raises(ConfigurationError, match=r"layer_types\[1\] is 'moe'; this family has full_attention"):
        reader(layer_types=["mamba", "moe"]).words("layer_types", kinds, 2)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("abc", "must be a list"), ([1], "1 entries for 2 layers"), ([1, -1], r"\[1\] is -1"), (None, "is null")],
    ids=["text", "short", "negative", "null"],
)
def test_a_wrong_list_is_refused(value, problem):
    with pytest.raises(ConfigurationError, match=problem):
        reader(layers=value).numbers("layers", 5, 2)


@pytest.mark.parametrize("value", [None, False, 0, []], ids=repr)
def test_a_key_that_is_off_is_not_refused(value):
    reader(sliding_window=value).refuse("sliding_window", "unknown")
    with pytest.raises(ConfigurationError, match="sliding_window is 4096; unknown"):
        reader(sliding_window=4096).refuse("sliding_window", "unknown")
