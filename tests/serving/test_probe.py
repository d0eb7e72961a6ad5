"""Questions over HTTP, asked of a small server."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kvweave.serving.probe import TRIAL_TOKENS, Question, ask, failed_loads, is_healthy, questions, served_name
from tests.serving.own_ports import own_ports

METRICS = """# HELP vllm:kvweave_failed_total Requests
vllm:kvweave_failed_total{engine="0",reason="timed_out"} 2.0
vllm:kvweave_failed_total{engine="0",reason="refused"} 1.0
vllm:kvweave_failed_created{engine="0"} 99.0
vllm:kvweave_offers_total{engine="0"} 7.0
"""


PAGES = {"/health": "", "/v1/models": json.dumps({"data": [{"id": "named"}]}), "/metrics": METRICS}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200 if self.path in PAGES else 404, PAGES.get(self.path, "not here"))

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.answer(400 if "chat" in self.path else 200, asked)

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def nobody() -> str:
    return f"http://127.0.0.1:{own_ports(1)}"


def test_a_server_is_healthy_or_not_there(url: str, nobody: str) -> None:
    assert (is_healthy(url), is_healthy(nobody)) == (True, False)


def test_a_proxy_is_not_asked(url: str, nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", nobody)
    assert is_healthy(url)


def test_the_model_s_name_is_the_server_s(url: str, nobody: str) -> None:
    assert (served_name(url, "default"), served_name(nobody, "default")) == ("named", "default")


def test_failed_loads_are_counted_over_all_reasons(url: str, nobody: str) -> None:
    assert (failed_loads(url), failed_loads(nobody)) == (3.0, 0.0)


def test_an_answer_comes_with_its_status(url: str) -> None:
    chat, plain = questions("a model")
    assert (ask(url, chat).status, ask(url, chat).is_good, ask(url, plain).is_good) == (400, False, True)
    assert json.loads(ask(url, plain).text) == plain.body | {"max_tokens": TRIAL_TOKENS}


def test_nobody_answers_with_status_0(nobody: str) -> None:
    assert ask(nobody, questions("m")[0]).status == 0


def test_the_curl_line_carries_the_body_through_a_shell() -> None:
    question = Question("/v1/completions", {"model": "it's mine", "prompt": 'say "yes" for $5'})
    words = shlex.split(question.curl("http://127.0.0.1:8000"))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/completions"]
    assert json.loads(words[-1]) == question.body
