"""A transport that stalls between real servers: other requests' tokens keep flowing, and nothing wrong comes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.vllm.check import compare, reference
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import Answer, complete, through
from tests.e2e.vllm.servers import Server, deploy, kvweave, running
from tests.e2e.vllm.stall_file import STALL_FILE, held_file

LEASE_SECONDS = 5
PATIENCE = 60.0


@dataclass
class Stalled:
    """A pair of servers, and a request of which the decode server holds the reads."""

    source: Server
    target: Server
    file: Path
    prompt: list[int]
    answer: Future[Answer]

    @property
    def held(self) -> bool:
        return held_file(self.file).exists() and not self.answer.done()

    def let_go(self) -> None:
        held_file(self.file).unlink()


@pytest.fixture(scope="module")
def pair(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server, Path]]:
    """A prefill server, and a decode server that computes what it could not load."""
    folder, file = served_model("llama", models), tmp_path_factory.mktemp("stall") / "stall"
    stalling = kvweave("kv_consumer", "recompute", **{STALL_FILE: str(file)}) | {
        "kv_connector": "StallingConnector", "kv_connector_module_path": "tests.e2e.vllm.stalling",
    }  # fmt: skip
    deployments = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer", kv_lease_duration=LEASE_SECONDS)),
        deploy("decode", "llama", folder, "tp=1", stalling),
    ]
    with running(deployments, tmp_path_factory.mktemp("logs")) as (source, target):
        yield source, target, file


@pytest.fixture
def stalled(pair: tuple[Server, Server, Path], request: pytest.FixtureRequest) -> Iterator[Stalled]:
    """The reads of one request are held from here on."""
    source, target, file = pair
    prompt = prompt_of(400, seed=sum(request.node.name.encode()))
    file.touch()
    with ThreadPoolExecutor(1) as pool:
        made = Stalled(source, target, file, prompt, pool.submit(through, source.url, target.url, prompt, 8))
        deadline = time.monotonic() + PATIENCE
        while not made.held:
            assert time.monotonic() < deadline, "no read came"
            time.sleep(0.05)
        yield made


def check_equal(server: Server, prompt: list[int], answer: Answer, max_tokens: int) -> None:
    report = compare([prompt], [reference(server.url, prompt, max_tokens)], [answer])
    assert report.ok, report


def test_tokens_of_other_requests_flow_while_a_read_is_stalled(stalled: Stalled) -> None:
    url = stalled.target.url
    here, loaded = prompt_of(50, seed=1), prompt_of(200, seed=2)
    check_equal(stalled.target, here, complete(url, here, 100), 100)
    check_equal(stalled.target, loaded, through(stalled.source.url, url, loaded, 100), 100)
    assert stalled.held
    stalled.let_go()
    check_equal(stalled.target, stalled.prompt, stalled.answer.result(PATIENCE), 8)


def test_a_stalled_read_ends_with_its_lease_when_nobody_renews_it(stalled: Stalled) -> None:
    os.killpg(stalled.source.process.pid, signal.SIGSTOP)
    try:
        here = prompt_of(60, seed=3)
        answer = complete(stalled.target.url, here, 100)
        check_equal(stalled.target, stalled.prompt, stalled.answer.result(PATIENCE), 8)
    finally:
        os.killpg(stalled.source.process.pid, signal.SIGCONT)
        stalled.let_go()
    check_equal(stalled.target, here, answer, 100)
