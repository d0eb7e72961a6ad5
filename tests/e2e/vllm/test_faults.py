"""What goes wrong between real servers: dead and stopped prefill servers. The decode server stays up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vllm.check import compare, reference
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import Answer, complete, prefill, through
from tests.e2e.vllm.servers import Server, deploy, kvweave, running, start, wait_healthy

BOUND_SECONDS = 40.0
"""A failed load is noticed and computed within this time, also on a busy machine."""


@pytest.fixture
def pair(models: Path, tmp_path: Path) -> Iterator[list[Server]]:
    """A pair of servers of its own for every test; a failed load is computed."""
    folder = served_model("llama", models)
    deployments = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer", kv_lease_duration=20)),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer", "recompute")),
    ]
    with running(deployments, tmp_path) as servers:
        yield servers


def check_equal(server: Server, prompt: list[int], answer: Answer, max_tokens: int) -> None:
    report = compare([prompt], [reference(server.url, prompt, max_tokens)], [answer])
    assert report.ok, report


def stopped(server: Server, number: int) -> None:
    """Sends a signal to a server and all its processes."""
    os.killpg(server.process.pid, number)


def test_a_prefill_server_is_killed_and_comes_back(pair: list[Server], tmp_path: Path) -> None:
    source, target = pair
    prompt = prompt_of(200, seed=1)
    check_equal(target, prompt, through(source.url, target.url, prompt, 8), 8)
    lost = prompt_of(200, seed=2)
    offered = prefill(source.url, lost)
    stopped(source, signal.SIGKILL)
    began = time.monotonic()
    answer = complete(target.url, lost, 8, kv_transfer_params=offered.params)
    assert time.monotonic() - began < BOUND_SECONDS
    check_equal(target, lost, answer, 8)
    again = start(source.deployment, tmp_path)
    try:
        wait_healthy(again)
        prompt = prompt_of(200, seed=3)
        check_equal(target, prompt, through(again.url, target.url, prompt, 8), 8)
        assert "is ready" in target.tail(400)
    finally:
        again.end()


def test_a_stopped_prefill_server_stops_nobody_else(pair: list[Server]) -> None:
    source, target = pair
    check_equal(target, prompt_of(90), through(source.url, target.url, prompt_of(90), 8), 8)
    prompt = prompt_of(200, seed=4)
    offered = prefill(source.url, prompt)
    stopped(source, signal.SIGSTOP)
    try:
        began = time.monotonic()
        other = complete(target.url, prompt_of(50, seed=5), 50)
        assert other.status == 200
        answer = complete(target.url, prompt, 8, kv_transfer_params=offered.params)
        assert time.monotonic() - began < BOUND_SECONDS
    finally:
        stopped(source, signal.SIGCONT)
    check_equal(target, prompt, answer, 8)
