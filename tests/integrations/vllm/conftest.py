"""vLLM, or the reason why these tests have none: they run in the environment of the parity tests."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings

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
