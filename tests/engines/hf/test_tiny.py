"""Tiny models: the same everywhere, varied in what they say, with a tokenizer of bytes."""

from __future__ import annotations

import pytest

from kvweave.engines.hf.families import FAMILIES
from kvweave.errors import ConfigurationError

transformers = pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
tiny = pytest.importorskip("kvweave.engines.hf.tiny")

PROMPT = list(range(40, 80))


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_vary(family, prefill_runner):
    made = prefill_runner(family).generate(PROMPT, 16)
    assert len(set(made)) >= 6


@pytest.mark.parametrize("family", ["llama", "deepseek-v4", "nemotron-h"])
def test_a_family_is_the_same_model_every_time(family, tiny_folder, tmp_path):
    again = tiny.tiny_model(family, tmp_path)
    first = (tiny_folder(family) / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == first


def test_text_goes_through_the_tokenizer_and_back(tiny_folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder("llama"))
    tokens = tokenizer.encode("Käse, 木 and\n\tbytes")
    assert max(tokens) < tiny.VOCABULARY
    assert tokenizer.decode(tokens) == "Käse, 木 and\n\tbytes"


def test_an_unknown_family_is_named_with_those_that_exist(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'llama-9' is not known; use one of llama, llama-mqa"):
        tiny.tiny_model("llama-9", tmp_path)
