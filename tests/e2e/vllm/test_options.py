"""vLLM's own options beside the connector: adapters, speculation, other connectors, capacity."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.vllm.adapters import random_adapter
from tests.e2e.vllm.check import REFERENCE_SALT, check_pair, compare
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, through
from tests.e2e.vllm.servers import Server, ServerFailed, deploy, kvweave, running

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def capacity(server: Server) -> str:
    """What vLLM says of its cache's size."""
    found = re.search(r"KV cache size: ([\d,]+) tokens", server.log.read_text(errors="replace"))
    assert found is not None
    return found[1]


def test_an_adapter_is_used_on_both_sides(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    adapter = random_adapter(folder, tmp_path / "adapter")
    lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"adapted={adapter}")
    pair = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer"), lora),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer"), lora),
    ]
    with running(pair, tmp_path) as (source, target):
        prompts = [prompt_of(length) for length in (50, 129, 300)]
        for model in ("adapted", "model"):
            got = [through(source.url, target.url, prompt, 8, model=model) for prompt in prompts]
            salt = f"{REFERENCE_SALT} {model}"
            wanted = [complete(target.url, prompt, 8, model=model, logprobs=2, cache_salt=salt) for prompt in prompts]
            report = compare(prompts, wanted, got)
            assert report.ok, report
        assert metrics(target.url)['vllm:kvweave_transfer_bytes_count{engine="0",model_name="model"}'] > 0


def test_the_decode_side_speculates(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    speculation = ("--speculative-config", json.dumps(SPECULATION))
    pair = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer")),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer"), speculation),
    ]
    with running(pair, tmp_path) as (source, target):
        prompts = [prompt_of(16) * repeats for repeats in (1, 3, 8)]
        for report in check_pair(source.url, target.url, prompts, 20):
            assert report.ok, report


def test_the_capacity_stays_as_it_is(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    both = [
        deploy("plain", "llama", folder, "tp=1"),
        deploy("with", "llama", folder, "tp=1", kvweave("kv_both")),
    ]
    with running(both, tmp_path) as servers:
        assert len({capacity(server) for server in servers}) == 1


def test_nixl_connector_beside_it_is_refused_at_start(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    children = [kvweave("kv_producer"), {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}]
    multi = {
        "kv_connector": "MultiConnector", "kv_role": "kv_producer",
        "kv_connector_extra_config": {"connectors": children},
    }  # fmt: skip
    refused = deploy("refused", "llama", folder, "tp=1", multi)
    with pytest.raises(ServerFailed), running([refused], tmp_path):
        pass
    log = (tmp_path / "refused.log").read_text(errors="replace")
    assert "NixlConnector stands beside KVWeaveConnector" in log
