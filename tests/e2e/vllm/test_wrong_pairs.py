"""Pairs that do not fit: refused at the handshake, every mismatch in both logs; the decode servers stay up.

Two decode servers, one that computes what it cannot load and one that fails such requests, meet one prefill server of
every wrong kind in turn.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import kvweave
from kvweave.engines.hf.families import FAMILIES
from kvweave.engines.hf.tiny import save_random_model
from tests.e2e.vllm.check import compare, reference
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, prefill
from tests.e2e.vllm.servers import Deployment, Server, deploy, running
from tests.e2e.vllm.servers import kvweave as connector

BOUND_SECONDS = 10.0
"""A request of a wrong pair is answered within this time, also on a busy machine."""

LOGGED_SECONDS = 10.0
WEIGHTS = "model: source has "
DRAFT = {"method": "draft_model", "num_speculative_tokens": 2}
SCALED = {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}


@dataclass(frozen=True)
class Wrong:
    """A prefill server that does not fit the decode servers' Llama, and what both logs must say of it.

    ``version`` is that of its protocol, ``layers`` how many it has, ``options`` are vLLM's, each a JSON object.
    """

    said: Sequence[str]
    model: str = "llama"
    options: Mapping[str, object] = field(default_factory=dict)
    dtype: str = "float32"
    layers: int | None = None
    version: int | None = None


KINDS = {
    "another model": Wrong((WEIGHTS, "reach: source has window of 128 tokens, target has all tokens"), "gemma3"),
    "a fine-tune of equal shape": Wrong((WEIGHTS,), "llama-tuned"),
    "other options": Wrong((WEIGHTS,), options={"--hf-overrides": SCALED}),
    "another dtype": Wrong(("k dtype: source has bfloat16, target has float32", "v dtype: "), dtype="bfloat16"),
    "fewer layers": Wrong((WEIGHTS, "arrays: source has none of these 4, target has model.layers.2"), layers=2),
    "a draft model on its side": Wrong((", draft draft_model ",), options={"--speculative-config": DRAFT}),
    "another protocol version": Wrong(("protocol version: ",), version=99),
}


@pytest.fixture(scope="module")
def decoders(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """The decode servers: one recomputes, one fails."""
    folder = served_model("llama", models)
    both = [
        deploy(policy, "llama", folder, "tp=1", connector("kv_consumer", policy)) for policy in ("recompute", "fail")
    ]
    with running(both, tmp_path_factory.mktemp("decoders")) as servers:
        yield servers


def draft_model(models: Path) -> Path:
    """A small Llama to draft for the other one."""
    return shorter_llama(models, 2)


def shorter_llama(models: Path, layers: int) -> Path:
    """The Llama with fewer layers."""
    folder = models / f"llama-{layers}layers"
    if not (folder / "config.json").exists():
        save_random_model("llama", dict(FAMILIES["llama"].values) | {"num_hidden_layers": layers}, folder)
    return folder


def speculating(models: Path, options: Mapping[str, object]) -> list[str]:
    """vLLM's arguments for options that are JSON objects."""
    arguments = []
    for name, value in options.items():
        stated = {**DRAFT, "model": str(draft_model(models))} if value is DRAFT else value
        arguments += [name, json.dumps(stated)]
    return arguments


def of_version(version: int, folder: Path) -> dict[str, str]:
    """The environment of a server that speaks another version of the protocol."""
    shutil.copytree(Path(kvweave.__file__).parent, folder / "kvweave")
    codec = folder / "kvweave" / "protocol" / "codec.py"
    codec.write_text(codec.read_text().replace("PROTOCOL_VERSION = 1\n", f"PROTOCOL_VERSION = {version}\n"))
    return {"PYTHONPATH": str(folder)}


def deployment(wrong: Wrong, models: Path, folder: Path) -> Deployment:
    """The wrong prefill server."""
    model = served_model(wrong.model, models) if wrong.layers is None else shorter_llama(models, wrong.layers)
    arguments = speculating(models, wrong.options)
    made = deploy("prefill", wrong.model, model, "tp=1", connector("kv_producer"), arguments)
    environment = {} if wrong.version is None else of_version(wrong.version, folder / "other")
    return replace(made, dtype=wrong.dtype, environment=environment)


def wait_said(server: Server, start: int, said: Sequence[str]) -> None:
    """Waits until everything stands in a server's log behind ``start``."""
    deadline = time.monotonic() + LOGGED_SECONDS
    while True:
        text = server.log.read_text(errors="replace")[start:]
        missing = [words for words in said if words not in text]
        if not missing:
            return
        assert time.monotonic() < deadline, f"{server.deployment.name} never said {missing}: {text[-3000:]}"
        time.sleep(0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_pair_is_refused_in_both_logs(decoders: list[Server], kind: str, models: Path, tmp_path: Path) -> None:
    wrong = KINDS[kind]
    with running([deployment(wrong, models, tmp_path)], tmp_path) as (source,):
        prompt = prompt_of(100, seed=len(kind))
        for target in decoders:
            start = len(target.log.read_text(errors="replace"))
            offered = prefill(source.url, prompt)
            began = time.monotonic()
            answer = complete(target.url, prompt, 8, kv_transfer_params=offered.params)
            seconds = time.monotonic() - began
            print(f"{kind}, {target.deployment.name}: HTTP {answer.status} after {seconds:.1f} s")
            assert seconds < BOUND_SECONDS
            wanted = reference(target.url, prompt, 8)
            if target.deployment.name == "recompute":
                report = compare([prompt], [wanted], [answer])
                assert report.ok, report
            else:
                assert (answer.status, wanted.status) == (500, 200)
            wait_said(target, start, wrong.said)
        wait_said(source, 0, wrong.said)


def test_a_draft_model_on_the_decode_side_alone(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    arguments = speculating(models, {"--speculative-config": DRAFT})
    pair = [
        deploy("prefill", "llama", folder, "tp=1", connector("kv_producer")),
        deploy("decode", "llama", folder, "tp=1", connector("kv_consumer", "recompute"), arguments),
    ]
    with running(pair, tmp_path) as (source, target):
        prompt = prompt_of(100)
        answer = complete(target.url, prompt, 8, kv_transfer_params=prefill(source.url, prompt).params)
        report = compare([prompt], [reference(target.url, prompt, 8)], [answer])
        assert report.ok, report
        for server in (source, target):
            wait_said(server, 0, (WEIGHTS, ", draft draft_model ", "arrays: source has none of these"))
