"""Requests of every kind through one real pair: right tokens, each offer loaded at most once, all of them released."""

from __future__ import annotations

import base64
import io
import json
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.vllm.check import compare, reference
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import Answer, complete, metrics, prefill, through, together
from tests.e2e.vllm.servers import Server

PATIENCE = 60.0


def counted(server: Server, name: str) -> float:
    """A counter of ours, over all its labels."""
    return sum(value for key, value in metrics(server.url).items() if key.split("{")[0] == f"vllm:kvweave_{name}")


def check_released(servers: Sequence[Server]) -> None:
    """Every offer has ended, read or not, and nobody holds a block."""
    deadline = time.monotonic() + PATIENCE
    source, target = servers
    while True:
        usage = [value for s in servers for key, value in metrics(s.url).items() if "kv_cache_usage_perc" in key]
        if counted(source, "offers_total") == counted(source, "released_total") and not any(usage):
            break
        assert time.monotonic() < deadline, f"blocks stay: {usage}"
        time.sleep(0.2)
    assert counted(target, "transfer_bytes_count") <= counted(source, "offers_total")


def check_equal(servers: Sequence[Server], prompt: list[int], answers: Sequence[Answer], max_tokens: int) -> None:
    wanted = reference(servers[1].url, prompt, max_tokens)
    report = compare([prompt] * len(answers), [wanted] * len(answers), answers)
    assert report.ok, report


def embeddings(seed: int, tokens: int = 90) -> str:
    """A prompt of random embeddings, as the API takes it."""
    import torch

    drawn = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(seed)) * 0.25
    buffer = io.BytesIO()
    torch.save(drawn, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


KINDS: Mapping[str, Mapping[str, Any]] = {
    "structured output": {"structured_outputs": {"regex": "[0-9]{4,}"}},
    "priority": {"priority": 3},
    "echo": {"echo": True},
    "log-probabilities": {"logprobs": 3},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.5},
    "seeded sampling": {"temperature": 1.0, "seed": 11},
    "allowed tokens": {"allowed_token_ids": [20, 30, 40]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_this_kind_are_loaded(llama_pair: list[Server], kind: str) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    prompt, fields = prompt_of(140, seed=40 + len(kind)), KINDS[kind]
    answer = through(source.url, target.url, prompt, 8, **fields)
    wanted = complete(target.url, prompt, 8, cache_salt=kind, **fields)
    assert (answer.status, answer.tokens) == (200, wanted.tokens), answer.error
    assert counted(target, "transfer_bytes_count") == before + 1
    check_released(llama_pair)


def test_a_prompt_of_embeddings_is_loaded(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    answer = through(source.url, target.url, [], 8, prompt_embeds=embeddings(1))
    wanted = complete(target.url, [], 8, prompt_embeds=embeddings(1), cache_salt="other")
    assert (answer.status, answer.tokens) == (200, wanted.tokens), answer.error
    assert counted(target, "transfer_bytes_count") == before + 1
    check_released(llama_pair)


def test_other_embeddings_of_the_same_length_are_computed(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    offered = prefill(source.url, [], prompt_embeds=embeddings(2))
    answer = complete(target.url, [], 8, prompt_embeds=embeddings(3), kv_transfer_params=offered.params)
    wanted = complete(target.url, [], 8, prompt_embeds=embeddings(3), cache_salt="other")
    assert (answer.status, answer.tokens) == (200, wanted.tokens), answer.error
    assert counted(target, "transfer_bytes_count") == before


def test_beam_search_is_computed_where_it_arrives(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    fields = {"use_beam_search": True, "n": 2}
    answer = through(source.url, target.url, prompt_of(130, seed=60), 6, **fields)
    wanted = complete(target.url, prompt_of(130, seed=60), 6, **fields)
    texts = [[choice["text"] for choice in one.raw["choices"]] for one in (answer, wanted)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2
    assert counted(target, "transfer_bytes_count") == before
    check_released(llama_pair)


def test_two_samples(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    prompt = prompt_of(200, seed=1)
    answer = through(source.url, target.url, prompt, 8, n=2, temperature=1.0, top_k=1)
    assert answer.status == 200, answer.error
    samples = [Answer(200, tuple(choice["token_ids"])) for choice in answer.raw["choices"]]
    assert len(samples) == 2
    check_equal(llama_pair, prompt, samples, 8)
    assert counted(target, "transfer_bytes_count") == before + 1
    check_released(llama_pair)


def test_prompt_log_probabilities(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    prompt = prompt_of(150, seed=2)
    answer = through(source.url, target.url, prompt, 8, prompt_logprobs=1)
    check_equal(llama_pair, prompt, [answer], 8)
    assert len(answer.raw["choices"][0]["prompt_logprobs"]) == 150
    assert counted(target, "transfer_bytes_count") == before
    check_released(llama_pair)


def test_a_resent_request(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    prompt = prompt_of(180, seed=3)
    offered = prefill(source.url, prompt)
    before = counted(target, "transfer_bytes_count")
    answers = [complete(target.url, prompt, 8, kv_transfer_params=offered.params) for _ in range(3)]
    check_equal(llama_pair, prompt, answers, 8)
    assert counted(target, "transfer_bytes_count") == before + 1
    check_released(llama_pair)


def test_preempted_requests(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    before = counted(target, "transfer_bytes_count")
    prompts = [prompt_of(200, seed=seed) for seed in range(10, 18)]
    answers = together([lambda p=prompt: through(source.url, target.url, p, 100) for prompt in prompts], 8)
    assert metrics(target.url)['vllm:num_preemptions_total{engine="0",model_name="model"}'] > 0
    assert counted(target, "transfer_bytes_count") <= before + len(prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        check_equal(llama_pair, prompt, [answer], 100)
    check_released(llama_pair)


def test_clients_that_leave(llama_pair: list[Server]) -> None:
    source, target = llama_pair
    for number in range(6):
        prompt = prompt_of(300, seed=30 + number)
        offered = prefill(source.url, prompt)
        body = {
            "model": "model", "prompt": prompt, "max_tokens": 500, "stream": True, "ignore_eos": True,
            "kv_transfer_params": offered.params,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{target.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as stream:
            for _ in range(number):
                stream.readline()
    check_released(llama_pair)


@pytest.mark.parametrize(
    "change",
    [
        {"remote_request_id": "nobody"}, {"remote_engine_id": "other"}, {"remote_block_ids": [[999]]},
        {"remote_num_tokens": 7}, {"remote_host": "example.org"}, {"remote_port": 1}, {"kvweave": {}},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_wrong_reference_never_answers_from_other_bytes(llama_pair: list[Server], change: dict[str, object]) -> None:
    source, target = llama_pair
    prompt = prompt_of(120, seed=sum(str(change).encode()))
    offered = prefill(source.url, prompt)
    answer = complete(target.url, prompt, 8, kv_transfer_params={**(offered.params or {}), **change})
    check_equal(llama_pair, prompt, [answer], 8)
    assert counted(target, "failed_total") > 0
