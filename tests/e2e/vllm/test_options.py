"""vLLM's own options beside the connector: adapters, and what the connector costs in capacity."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.vllm.adapters import random_adapter
from tests.e2e.vllm.check import REFERENCE_SALT, compare
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, through
from tests.e2e.vllm.servers import Server, deploy, kvweave, running


def capacity(server: Server) -> str:
    """What vLLM says of its cache's size."""
    found = re.search(r"KV cache size: ([\d,]+) tokens", server.log.read_text(errors="replace"))
    assert found is not None
    return found[1]


def lora(**adapters: Path) -> tuple[str, ...]:
    """vLLM's arguments for adapters by name."""
    modules = [f"{name}={adapter}" for name, adapter in adapters.items()]
    return "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules", *modules


def test_an_adapter_is_used_on_both_sides(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    one, other = (random_adapter(folder, tmp_path / str(seed), seed) for seed in (3, 4))
    pair = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer"), lora(adapted=one, namesake=one)),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer"), lora(adapted=one, namesake=other)),
    ]
    with running(pair, tmp_path) as (source, target):
        prompts = [prompt_of(length) for length in (50, 129, 300)]
        for model, loaded in (("adapted", 3), ("model", 6), ("namesake", 6)):
            got = [through(source.url, target.url, prompt, 8, model=model) for prompt in prompts]
            salt = f"{REFERENCE_SALT} {model}"
            wanted = [complete(target.url, prompt, 8, model=model, logprobs=2, cache_salt=salt) for prompt in prompts]
            report = compare(prompts, wanted, got)
            assert report.ok, report
            transfers = [value for key, value in metrics(target.url).items() if "kvweave_transfer_bytes_count" in key]
            assert sum(transfers) == loaded


def test_the_capacity_stays_as_it_is(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    roles = ("kv_producer", "kv_consumer", "kv_both")
    alike = [deploy("plain", "llama", folder, "tp=1")]
    alike += [deploy(role, "llama", folder, "tp=1", kvweave(role)) for role in roles]
    with running(alike, tmp_path) as servers:
        assert len({capacity(server) for server in servers}) == 1
