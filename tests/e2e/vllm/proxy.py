"""What a proxy does between a prefill and a decode server, as plain functions."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

REQUEST_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """What a server generated: token ids, the text, the HTTP status, and the params for the next server."""

    status: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    params: dict[str, Any] | None = None
    error: str = ""
    raw: Any = None


def complete(
    url: str, prompt: Sequence[int], max_tokens: int, *, seconds: float = REQUEST_SECONDS, **fields: object
) -> Answer:
    """One greedy completion of a prompt given as token ids; status 0 where nobody answers within ``seconds``."""
    body = {
        "model": "model", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True,
        "return_token_ids": True, "stream": False,
    } | fields  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            raw = json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error=error.read().decode(errors="replace")[:2000])
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, error=f"no answer: {error}")
    choice = raw["choices"][0]
    return Answer(200, tuple(choice["token_ids"] or ()), choice["text"], raw.get("kv_transfer_params"), "", raw)


def prefill(url: str, prompt: Sequence[int], **fields: Any) -> Answer:
    """Asks a prefill server for an offer of the prompt."""
    params = {"do_remote_decode": True, "do_remote_prefill": False}
    return complete(url, prompt, 1, kv_transfer_params=params, **fields)


def through(prefill_url: str, decode_url: str, prompt: Sequence[int], max_tokens: int, **fields: Any) -> Answer:
    """One request the way a proxy sends it: first to the prefill server, then with its answer to the decode server."""
    offered = prefill(prefill_url, prompt, **fields)
    if offered.status != 200:
        return offered
    return complete(decode_url, prompt, max_tokens, kv_transfer_params=offered.params, **fields)


def together(calls: Sequence[Any], at_once: int = 8) -> list[Answer]:
    """Runs calls without arguments concurrently; their answers in order."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda call: call(), calls))


def metrics(url: str) -> dict[str, float]:
    """A server's Prometheus counters, by name with labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found
