"""A model that sees pictures: the same tokens with another picture are another prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.vllm.pictures import picture, seeing_model, show
from tests.e2e.vllm.proxy import metrics
from tests.e2e.vllm.servers import Server, ServerFailed, deploy, kvweave, running

ASK = {"do_remote_decode": True, "do_remote_prefill": False}
UNNAMED = ("--mm-processor-cache-gb", "0", "--no-enable-prefix-caching")


@pytest.fixture(scope="module")
def pair(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A prefill and a decode server of the model."""
    folder = seeing_model(models / "blip2")
    deployments = [
        deploy("prefill", "llama", folder, "tp=1,block=64", kvweave("kv_producer")),
        deploy("decode", "llama", folder, "tp=1,block=32", kvweave("kv_consumer", "recompute")),
    ]
    with running(deployments, tmp_path_factory.mktemp("logs")) as servers:
        yield servers


def loads(server: Server) -> float:
    """How many requests were loaded."""
    return sum(value for key, value in metrics(server.url).items() if "kvweave_transfer_bytes_count" in key)


def test_a_picture_is_loaded_with_its_prompt(pair: Sequence[Server]) -> None:
    source, target = pair
    before = loads(target)
    offered = show(source.url, picture(1), 1, kv_transfer_params=ASK)
    answer = show(target.url, picture(1), 8, kv_transfer_params=offered.params)
    assert answer.tokens == show(target.url, picture(1), 8, cache_salt="reference").tokens
    assert loads(target) == before + 1


def test_the_same_tokens_with_another_picture_are_computed(pair: Sequence[Server]) -> None:
    source, target = pair
    before = loads(target)
    offered = show(source.url, picture(2), 1, kv_transfer_params=ASK)
    answer = show(target.url, picture(3), 8, kv_transfer_params=offered.params)
    wanted, other = (show(target.url, picture(seed), 8, cache_salt="reference").tokens for seed in (3, 2))
    assert answer.tokens == wanted != other
    assert loads(target) == before


def test_pictures_without_names_are_refused_at_start(models: Path, tmp_path: Path) -> None:
    folder = seeing_model(models / "blip2")
    refused = deploy("refused", "llama", folder, "tp=1,cache=off", kvweave("kv_producer"), UNNAMED)
    with pytest.raises(ServerFailed), running([refused], tmp_path):
        pass
    assert "--mm-processor-cache-gb 0 with --no-enable-prefix-caching: " in (tmp_path / "refused.log").read_text()
