"""vLLM, or the reason why these tests have none: they run in the environment of the parity tests."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
    if os.environ.get("KVWEAVE_REQUIRE_VLLM") == "1":
        pytest.exit("KVWEAVE_REQUIRE_VLLM=1, but vllm is not installed in this environment: run `make parity`")
else:
    with warnings.catch_warnings():  # torch and vLLM deprecate parts of one another while they are imported
        warnings.simplefilter("ignore")
        for module in (
            "vllm", "vllm._custom_ops", "vllm.v1.worker.utils", "vllm.v1.core.kv_cache_utils",
            "vllm.model_executor.layers.mamba.mamba_mixer2",
        ):  # fmt: skip
            importlib.import_module(module)


@pytest.fixture(scope="session")
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model's ``config.json`` and no weights."""
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("config")
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    LlamaConfig(
        vocab_size=256, max_position_embeddings=512, architectures=["LlamaForCausalLM"], **sizes
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def two(config_folder: Path) -> Iterator[Any]:
    """A prefill and a decode instance of a small model."""
    from tests.integrations.vllm.scheduling import two_instances

    with two_instances(config_folder) as made:
        yield made
