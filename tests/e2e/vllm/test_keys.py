"""Keys between real servers: a pair with keys serves, a decode server without an allowed key gets nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvweave.runtime.keys import make_key_files
from tests.e2e.vllm.check import compare, reference
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, prefill, through
from tests.e2e.vllm.servers import Server, deploy, kvweave, running

LEASE_SECONDS = 120


@dataclass(frozen=True)
class Guarded:
    """A pair with keys, and where the keys are."""

    source: Server
    target: Server
    keys: Path
    model: Path


def extra(keys: Path, own: str, other: str) -> dict[str, str]:
    """The settings of an engine that has its own key and allows the other one."""
    allowed = keys / f"{own} allows"
    allowed.mkdir(exist_ok=True)
    (allowed / f"{other}.key").write_text((keys / other / "engine.key").read_text())
    return {"keys": str(keys / own / "engine.key_secret"), "allowed_keys": str(allowed)}


def total(server: Server, name: str) -> float:
    return sum(value for key, value in metrics(server.url).items() if key.startswith(f"vllm:kvweave_{name}"))


@pytest.fixture(scope="module")
def guarded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    keys, folder = tmp_path_factory.mktemp("keys"), served_model("llama", models)
    for name in ("prefill", "decode", "stranger"):
        make_key_files(keys / name)
    giving = kvweave("kv_producer", kv_lease_duration=LEASE_SECONDS, **extra(keys, "prefill", "decode"))
    pair = [
        deploy("prefill", "llama", folder, "tp=1", giving),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer", **extra(keys, "decode", "prefill"))),
    ]
    with running(pair, tmp_path_factory.mktemp("logs")) as (source, target):
        yield Guarded(source, target, keys, folder)


def test_a_pair_with_keys_answers_as_one_server(guarded: Guarded) -> None:
    prompts = [prompt_of(length) for length in (40, 129, 400)]
    got = [through(guarded.source.url, guarded.target.url, prompt, 8) for prompt in prompts]
    wanted = [reference(guarded.target.url, prompt, 8) for prompt in prompts]
    report = compare(prompts, wanted, got)
    assert report.ok, report
    assert total(guarded.target, "transfer_bytes_count") == len(prompts)


@pytest.mark.parametrize("keys", ["none", "of its own"])
def test_a_decode_server_without_an_allowed_key_gets_nothing(guarded: Guarded, tmp_path: Path, keys: str) -> None:
    settings = extra(guarded.keys, "stranger", "prefill") if keys == "of its own" else {}
    stranger = deploy("stranger", "llama", guarded.model, "tp=1", kvweave("kv_consumer", "fail", **settings))
    handshakes, prompt = total(guarded.source, "handshakes_total"), prompt_of(200, seed=7)
    with running([stranger], tmp_path) as (server,):
        offered = prefill(guarded.source.url, prompt)
        assert complete(server.url, prompt, 8, kv_transfer_params=offered.params).status == 500
        assert complete(server.url, prompt, 8).status == 200
        assert total(server, "transfer_bytes_count") == 0
    assert total(guarded.source, "handshakes_total") == handshakes
    again = complete(guarded.target.url, prompt, 8, kv_transfer_params=offered.params)
    report = compare([prompt], [reference(guarded.target.url, prompt, 8)], [again])
    assert report.ok, report
