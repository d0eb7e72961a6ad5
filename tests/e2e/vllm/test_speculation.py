"""Servers that speculate: with drafters that keep a cache on both sides, and without one on either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.vllm.check import check_pair
from tests.e2e.vllm.drafters import eagle, speculative
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import metrics
from tests.e2e.vllm.servers import Server, deploy, kvweave, running

PROMPTS = [prompt_of(length) for length in (2, 50, 129, 300)] + [prompt_of(16) * 8]


def total(server: Server, name: str) -> float:
    """A counter over all its labels."""
    return sum(value for key, value in metrics(server.url).items() if key.startswith(f"vllm:{name}{{"))


def check_loaded(prefill: Server, decode: Server) -> None:
    """The pair's tokens are right, and every prompt was loaded."""
    for report in check_pair(prefill.url, decode.url, PROMPTS, 20, rounds=1):
        assert report.ok, report
    assert total(decode, "kvweave_transfer_bytes_count") == len(PROMPTS)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_drafter_without_a_cache_may_run_on_one_side(side: str, models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    arguments = speculative("ngram", prompt_lookup_max=4, prompt_lookup_min=2)
    pair = [
        deploy(name, "llama", folder, "tp=1", kvweave(role), arguments if name == side else ())
        for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
    ]
    with running(pair, tmp_path) as (source, target):
        check_loaded(source, target)


def test_a_draft_models_own_cache_is_loaded_too(models: Path, tmp_path: Path) -> None:
    """The drafter is the model itself: what it drafts is accepted as long as its own cache is right."""
    folder = served_model("llama", models)
    arguments = speculative("draft_model", model=str(folder))
    pair = [
        deploy("prefill", "llama", folder, "tp=2", kvweave("kv_producer"), arguments),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer"), arguments),
    ]
    with running(pair, tmp_path) as (source, target):
        check_loaded(source, target)
        drafted = total(target, "spec_decode_num_draft_tokens_total")
        assert total(target, "spec_decode_num_accepted_tokens_total") > 0.8 * drafted > 0


def test_an_eagle_head_on_both_sides(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    arguments = speculative("eagle", model=str(eagle(folder, tmp_path / "eagle")))
    pair = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer"), arguments),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer"), arguments),
    ]
    with running(pair, tmp_path) as (source, target):
        check_loaded(source, target)
        assert total(target, "spec_decode_num_drafts_total") > 0
