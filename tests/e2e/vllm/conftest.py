"""Real servers cost minutes: tests that start them run where ``KVWEAVE_E2E=1`` says so, in vLLM's environment."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.servers import Deployment, Server, deploy, kvweave, running


def require_servers() -> None:
    """Skips unless real servers are wanted."""
    if os.environ.get("KVWEAVE_E2E") != "1":
        pytest.skip("starts real servers: set KVWEAVE_E2E=1")
    if importlib.util.find_spec("vllm") is None:
        pytest.exit("KVWEAVE_E2E=1, but vllm is not installed in this environment")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tiny models are kept; ``KVWEAVE_E2E_MODELS`` names a folder that outlives the run."""
    require_servers()
    stated = os.environ.get("KVWEAVE_E2E_MODELS")
    return Path(stated) if stated else tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama_pair(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A prefill and a decode server; a failed load is computed at the decode side."""
    folder = served_model("llama", models)
    every = ("--enable-prompt-embeds", "--scheduling-policy", "priority")
    small = ("--num-gpu-blocks-override", "40", "--max-model-len", "1024")
    pair: list[Deployment] = [
        deploy("prefill", "llama", folder, "tp=1,block=64", kvweave("kv_producer", kv_lease_duration=20), every),
        deploy("decode", "llama", folder, "tp=1,block=32", kvweave("kv_consumer", "recompute"), (*every, *small)),
    ]
    with running(pair, tmp_path_factory.mktemp("logs")) as servers:
        yield servers
