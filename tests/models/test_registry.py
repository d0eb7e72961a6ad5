import pytest

from kvweave.errors import ConfigurationError
from kvweave.models.registry import BY_ARCHITECTURE, FAMILIES, find_family, reader_of


def test_an_unknown_architecture_is_named_with_what_is_missing_and_what_is_known():
    with pytest.raises(ConfigurationError) as refusal:
        find_family({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"}, "some-model")
    for words in ("some-model", "'RwkvForCausalLM'", "'rwkv'", "what is missing is a rule", "LlamaForCausalLM"):
        assert words in str(refusal.value)


def test_an_unknown_model_type_without_architectures_is_refused():
    with pytest.raises(ConfigurationError, match="architecture 'rwkv'"):
        find_family({"model_type": "rwkv"}, "m")


def test_a_file_with_neither_is_refused():
    with pytest.raises(ConfigurationError, match="architectures and model_type are missing"):
        find_family({"num_hidden_layers": 3}, "m")


@pytest.mark.parametrize("stated", ["LlamaForCausalLM", [3], {"a": 1}], ids=repr)
def test_architectures_that_are_no_list_of_names_are_refused(stated):
    with pytest.raises(ConfigurationError, match=r"architectures is .*; it must be a list"):
        find_family({"architectures": stated}, "m")


def test_architecture_and_model_type_of_two_families_are_refused_with_both():
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "qwen3"}
    with pytest.raises(ConfigurationError, match=r"LlamaForCausalLM \(Llama\), model_type says qwen3 \(Qwen3\)"):
        find_family(config, "m")


def test_a_model_type_of_its_own_goes_with_a_known_architecture():
    family = find_family({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "somebodys_v3"}, "m")
    assert family.name == "DeepSeek V2/V3"


@pytest.mark.parametrize("model_type", ["gemma3", "llama4", "qwen3_5", "qwen3_5_moe"])
def test_multimodal_files_are_read_in_their_text_part(model_type):
    config = {"model_type": model_type, "text_config": {"num_hidden_layers": 7}}
    assert reader_of(find_family(config, "m"), config, "m").layer_count() == 7


def test_a_multimodal_file_without_text_part_is_refused():
    config = {"model_type": "gemma3"}
    with pytest.raises(ConfigurationError, match="text_config is missing"):
        reader_of(find_family(config, "m"), config, "m")


def test_no_architecture_or_model_type_stands_in_two_families():
    assert len(BY_ARCHITECTURE) == sum(len(family.architectures) for family in FAMILIES)
    types = [model_type for family in FAMILIES for model_type in family.model_types]
    assert len(types) == len(set(types))
