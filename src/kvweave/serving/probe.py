"""Questions to a server over HTTP: is it there, what does it serve, does it answer, what did it count.

A proxy that the environment names is not asked: all servers are on this machine.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

HEALTH_SECONDS = 5.0
ANSWER_SECONDS = 600.0
ANSWER_TOKENS = 64
TRIAL_TOKENS = 2
"""Tokens that a user is shown how to ask for, and those that trying it out asks for."""

QUESTION = "What is the capital of France?"
_FAILED = "vllm:kvweave_failed_total"


@dataclass(frozen=True, slots=True)
class Reply:
    """A status (0 when nobody answered) and the text that came with it."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        """Whether the server did what it was asked."""
        return self.status == 200


@dataclass(frozen=True, slots=True)
class Question:
    """A request to a path below ``/v1``, and its body."""

    path: str
    body: dict[str, Any]

    def curl(self, url: str) -> str:
        """The command line that asks it."""
        body = json.dumps(self.body, ensure_ascii=False).replace("'", "'\\''")
        return f"curl {url}{self.path} -H 'Content-Type: application/json' -d '{body}'"


def questions(model: str) -> tuple[Question, Question]:
    """A chat completion, and a plain one for models that have no chat template."""
    chat = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": ANSWER_TOKENS}
    plain = {"model": model, "prompt": QUESTION, "max_tokens": ANSWER_TOKENS}
    return Question("/v1/chat/completions", chat), Question("/v1/completions", plain)


def ask(url: str, question: Question) -> Reply:
    """What the server answers to a question, with few tokens."""
    body = json.dumps(question.body | {"max_tokens": TRIAL_TOKENS}).encode()
    request = urllib.request.Request(url + question.path, body, {"Content-Type": "application/json"})
    return _send(request, ANSWER_SECONDS)


def is_healthy(url: str) -> bool:
    """Whether a server says that it is."""
    return _send(urllib.request.Request(f"{url}/health"), HEALTH_SECONDS).is_good


def served_name(url: str, default: str) -> str:
    """The name under which a server serves its model."""
    reply = _send(urllib.request.Request(f"{url}/v1/models"), HEALTH_SECONDS)
    try:
        return str(json.loads(reply.text)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return default


def failed_loads(url: str) -> float:
    """How many requests' caches a decode server could not load, by its metrics."""
    reply = _send(urllib.request.Request(f"{url}/metrics"), HEALTH_SECONDS)
    return sum(float(line.rpartition(" ")[2]) for line in reply.text.splitlines() if line.startswith(_FAILED))


def _send(request: urllib.request.Request, seconds: float) -> Reply:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as reply:
            return Reply(reply.status, reply.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.read().decode(errors="replace"))
    except (OSError, HTTPException) as error:
        return Reply(0, str(error))
