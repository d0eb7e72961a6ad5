from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import kvweave.core.spec as kv
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.whole_model import WholeModel, layer_number, read_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip


def configuration(values: dict[str, Any], heads: int = 2, draft_heads: int | None = None) -> Any:
    """A ``VllmConfig`` as far as it is read."""
    config = SimpleNamespace(to_dict=lambda: values, **{"conv_dim": 64} if "conv_dim" in values else {})
    per_layer = SimpleNamespace(total_num_kv_heads=heads)
    architecture = _Architecture(values["num_hidden_layers"], per_layer)
    draft = None if draft_heads is None else SimpleNamespace(get_total_num_kv_heads=lambda: draft_heads)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="tiny", hf_config=config, hf_text_config=config, model_arch_config=architecture,
            architectures=values.get("architectures"),
        ),
        speculative_config=None if draft is None else SimpleNamespace(draft_model_config=draft),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )  # fmt: skip


class _Architecture:
    def __init__(self, layers: int, per_layer: Any) -> None:
        self.total_num_hidden_layers = layers
        self._per_layer = per_layer

    def __getitem__(self, layer: int) -> Any:
        return self._per_layer


def test_a_known_architecture_is_described_layer_by_layer() -> None:
    whole = read_model(configuration(LLAMA))
    assert whole.attention("model.layers.1.self_attn.attn") == kv.FullAttentionSpec(2, 32)
    assert whole.heads("model.layers.1.self_attn.attn") == 2


def test_an_unknown_architecture_takes_vllms_own_count() -> None:
    whole = read_model(configuration(LLAMA | {"architectures": ["NewForCausalLM"], "model_type": "new"}, heads=6))
    assert whole.cache is None
    assert whole.heads("model.layers.1.self_attn.attn") == 6
    with pytest.raises(ConfigurationError, match=r"recurrent state .* 'NewForCausalLM' .* is not known"):
        whole.state("model.layers.1.mixer")


def test_draft_layers_are_those_behind_the_model_or_named_apart() -> None:
    whole = read_model(configuration(LLAMA, draft_heads=4))
    drafts = ["model.layers.2.self_attn.attn", "mtp.layers.0.self_attn.attn"]
    assert [whole.heads(layer) for layer in drafts] == [4, 4]
    assert [whole.decoder_index(layer) for layer in drafts] == [1, 1]


def test_falcon_h1_numbers_its_mixers_behind_the_layers() -> None:
    whole = WholeModel("tiny", 4, None)
    assert [whole.decoder_index(f"model.{number}.mixer") for number in (4, 7)] == [0, 3]
    assert not whole.is_draft("model.7.mixer")


def test_a_draft_layers_state_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="draft layers are not in it"):
        WholeModel("tiny", 2, None).state("mtp.layers.0.mixer")


def test_short_convolutions_width() -> None:
    assert read_model(configuration(LLAMA | {"conv_dim": 64})).short_conv_channels == 64


def test_a_name_without_a_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"encoder\.attn: no layer number in this name"):
        layer_number("encoder.attn")
