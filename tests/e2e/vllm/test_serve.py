"""``kvweave serve`` with real servers: many chats at once through vllm-router, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvweave.serving.probe import is_healthy
from tests.e2e.vllm.gentle import preload_library
from tests.e2e.vllm.listeners import listening_hosts
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.proxy import metrics
from tests.serving.own_ports import own_ports

SOURCE = Path(__file__).parents[3] / "src"
CHATS = 50
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
SUBJECTS = ("rivers", "bridges", "the sea", "glass", "old trains", "bees", "snow")


def chat(url: str, text: str, **fields: object) -> dict[str, Any]:
    """The greedy answer to one message, with its tokens."""
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0.0,
        "ignore_eos": True, "return_token_ids": True,
    } | fields  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.loads(reply.read())


def together(url: str, texts: list[str], **fields: object) -> list[list[int]]:
    """The tokens of the answers to all messages, asked at the same time."""
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: chat(url, text, **fields), texts))
    return [answer["choices"][0]["token_ids"] for answer in answers]


def messages() -> list[str]:
    """Messages of many lengths, no two the same."""
    return [f"{number}: " + f"tell me about {SUBJECTS[number % 7]} " * (1 + number % 9) for number in range(CHATS)]


def total(counters: dict[str, float], name: str) -> float:
    """The sum over all labels of a counter."""
    return sum(value for key, value in counters.items() if key.startswith(name))


@pytest.fixture(scope="module")
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A tiny Llama at tp 2 and 1 behind the router: the document of ``ready``, and the process."""
    folder = tmp_path_factory.mktemp("served")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    library = preload_library()
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "kvweave", "serve", str(served_model("llama", models)), "--prefill", "tp=2",
            "--decode", "tp=1,block=128", "--port", str(own_ports(6)), "--logs", str(folder / "logs"),
            "--json", "--", "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "2048",
            "--enforce-eager", "--chat-template", str(template),
        ],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield {"process": process, **outcome(process)}
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The document with which starting ends."""
    for line in process.stdout:
        document = json.loads(line)
        if document["event"] in ("ready", "failed"):
            return document
    pytest.fail("kvweave serve ended without a word")


def test_chats_at_once_are_all_answered_right_and_none_is_computed(served: dict[str, Any]) -> None:
    assert served["event"] == "ready", served
    decode, texts = served["servers"]["decode"], messages()
    got = together(served["url"], texts)
    counters = metrics(decode)
    wanted = together(decode, texts, cache_salt="reference")
    assert [text for text, one, other in zip(texts, got, wanted, strict=True) if one != other] == []
    assert total(counters, "vllm:kvweave_failed_total") == 0
    assert total(counters, "vllm:kvweave_transfer_bytes_count") == CHATS + 1


def test_the_shown_question_is_answered(served: dict[str, Any]) -> None:
    question = served["question"]
    assert (question["path"], question["failed_loads"]) == ("/v1/chat/completions", 0)
    assert chat(served["url"], "", **question["body"])["choices"][0]["token_ids"]


def test_everything_listens_on_loopback(served: dict[str, Any]) -> None:
    assert listening_hosts(served["process"].pid) == {"127.0.0.1"}


def test_all_servers_end_with_the_command(served: dict[str, Any]) -> None:
    urls = [served["url"], *served["servers"].values()]
    assert all(map(is_healthy, urls))
    served["process"].send_signal(signal.SIGINT)
    assert served["process"].wait(60) == 130
    assert not any(map(is_healthy, urls))
