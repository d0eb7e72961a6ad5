"""Which pairs the sweep runs, and which servers stand together."""

from __future__ import annotations

import pytest

from tests.e2e.vllm.models import MODELS
from tests.e2e.vllm.pairs import CORE, MOST_WORKERS, PAIRS, Pair, Place, chosen, places, waves
from tests.e2e.vllm.prompts import LENGTHS


def named(model: str) -> list[str]:
    return [pair.name for pair in PAIRS if pair.model == model]


def test_every_model_runs_both_directions() -> None:
    swept = {pair.model for pair in PAIRS}
    assert swept == set(MODELS) - {"llama-tuned", "llama-deep"}
    for model in swept - {"smollm2"}:
        assert named(model)[:3] == ["tp 1>1", "tp 2>1", "tp 1>2"]
    assert named("smollm2") == ["tp 1>1", "tp 3>1", "tp 1>3"]


def test_what_a_models_caches_add() -> None:
    assert named("llama")[3:] == ["block 64>128", "block 128>64", "block 32>96", "pp 2>1", "pp 1>2"]
    assert named("gemma3")[3:] == ["tp 1>1, edges", "block 32>128", "block 32>128, edges"]
    assert named("gpt-oss")[3:] == ["tp 1>1, edges"]


def test_the_core_has_one_pair_of_each_kind() -> None:
    assert [(pair.model, pair.name) for pair in CORE] == [
        ("llama", "tp 2>1"), ("llama", "tp 1>2"), ("llama", "block 64>128"), ("llama", "pp 2>1"),
        ("gemma3", "block 32>128"), ("granite-4", "tp 2>1"),
    ]  # fmt: skip


@pytest.mark.parametrize("both_ways", [False, True], ids=["a side each", "both ways"])
def test_waves_have_all_pairs_in_order_and_few_workers(both_ways: bool) -> None:
    found = waves(PAIRS, both_ways)
    assert [pair for wave in found for pair in wave] == list(PAIRS)
    for wave in found:
        standing = {place for pair in wave for place in places(pair, both_ways)}
        assert sum(place.workers for place in standing) <= MOST_WORKERS


def test_a_server_that_works_both_ways_saves_one() -> None:
    pairs = [pair for pair in PAIRS if pair.model == "gpt-oss" and not pair.edges]
    standing = {place for pair in pairs for place in places(pair, both_ways=True)}
    assert standing == {Place("prefill", "tp=1"), Place("decode", "tp=1"), Place("decode", "tp=2")}


def test_workers_are_counted_over_stages() -> None:
    assert Place("prefill", "tp=3,pp=2,block=64").workers == 6


def test_prompts_of_a_pair() -> None:
    assert tuple(map(len, PAIRS[0].prompts)) == LENGTHS
    edges = Pair("gemma3", "edges", "tp=1", "tp=1", (128,))
    assert [len(prompt) for prompt in edges.prompts][:6] == [126, 127, 128, 254, 255, 256]


def test_pairs_are_chosen_by_model_and_name() -> None:
    found = chosen(PAIRS, ["llama", "mamba2"], ["pp", "2>1"])
    assert [(pair.model, pair.name) for pair in found] == [
        ("llama", "tp 2>1"), ("llama", "pp 2>1"), ("llama", "pp 1>2"), ("mamba2", "tp 2>1"),
    ]  # fmt: skip


def test_an_unknown_model_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"no such model: llma; known are deepseek-v2, falcon-h1"):
        chosen(PAIRS, ["llma"])
