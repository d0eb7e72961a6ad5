"""``kvweave serve --progressive`` with real servers: long prompts in chunks, moved while they are prefilled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvweave.serving.probe import is_healthy
from tests.e2e.vllm.gentle import preload_library
from tests.e2e.vllm.listeners import listening_hosts
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, together
from tests.e2e.vllm.test_serve import SOURCE, outcome, total
from tests.serving.own_ports import own_ports
from tests.serving.waiting import wait_until

CHUNK = 192
LENGTHS = (1500, 1, 700, 191, 1337, 192, 640, 2, 1024, 384)


@pytest.fixture(scope="module")
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A tiny Llama at tp 2 and 1 behind our proxy, which prefills at most 192 tokens at once."""
    folder = tmp_path_factory.mktemp("served")
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    library = preload_library()
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "kvweave", "serve", str(served_model("llama", models)), "--prefill", "tp=2,block=64",
            "--decode", "tp=1,block=128", "--port", str(own_ports(6)), "--logs", str(folder / "logs"), "--progressive",
            "--json", "--", "--served-model-name", "model", "--dtype", "float32", "--max-model-len", "2048",
            "--max-num-batched-tokens", str(CHUNK), "--max-num-seqs", "16", "--enforce-eager",
        ],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield {"process": process, "logs": folder / "logs", **outcome(process)}
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def ask(url: str, length: int, **fields: object) -> tuple[int, ...]:
    """The tokens of the answer to a prompt of that length."""
    return complete(url, prompt_of(length), 12, **fields).tokens


@pytest.mark.parametrize("at_once", [1, 4], ids=["one after the other", "four at once"])
def test_long_prompts_are_answered_as_by_one_server_and_moved_while_they_are_prefilled(
    served: dict[str, Any], at_once: int
) -> None:
    assert served["event"] == "ready", served
    decode, salt = served["servers"]["decode"], f"at once {at_once}"
    before = metrics(decode)
    got = together([lambda n=n: ask(served["url"], n, cache_salt=salt) for n in LENGTHS], at_once)
    after = metrics(decode)
    wanted = together([lambda n=n: ask(decode, n, cache_salt=f"{salt} alone") for n in LENGTHS], at_once)
    assert [n for n, one, other in zip(LENGTHS, got, wanted, strict=True) if one != other or not one] == []
    assert total(after, "vllm:kvweave_failed_total") == 0
    assert total(after, "vllm:kvweave_early_bytes_total") > total(before, "vllm:kvweave_early_bytes_total")
    moved = total(after, "vllm:kvweave_transfer_bytes_count") - total(before, "vllm:kvweave_transfer_bytes_count")
    assert moved == len([n for n in LENGTHS if n > 1])


def test_an_answer_is_streamed(served: dict[str, Any]) -> None:
    body = b'{"model": "model", "prompt": "a river", "max_tokens": 5, "stream": true, "ignore_eos": true}'
    request = urllib.request.Request(f"{served['url']}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        assert reply.read().rstrip().endswith(b"data: [DONE]")


def test_a_request_that_is_refused_is_refused_by_the_proxy_too(served: dict[str, Any]) -> None:
    assert complete(served["url"], prompt_of(4000), 12).status == 400


def test_a_client_that_leaves_ends_both_requests(served: dict[str, Any]) -> None:
    assert complete(served["url"], prompt_of(1500), 400, seconds=1.0, cache_salt="leaves").status == 0

    def idle(url: str) -> bool:
        counters = metrics(url)
        return total(counters, "vllm:num_requests_running") + total(counters, "vllm:num_requests_waiting") == 0

    wait_until(lambda: all(map(idle, served["servers"].values())), "both servers idle")


def test_everything_listens_on_loopback(served: dict[str, Any]) -> None:
    assert listening_hosts(served["process"].pid) == {"127.0.0.1"}


def test_all_servers_end_with_the_command(served: dict[str, Any]) -> None:
    urls = [served["url"], *served["servers"].values()]
    assert all(map(is_healthy, urls))
    served["process"].send_signal(signal.SIGINT)
    assert served["process"].wait(60) == 130
    assert not any(map(is_healthy, urls))
