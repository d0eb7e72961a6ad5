"""Inside MultiConnector: transfers beside a connector that saves caches, and their metrics, also with two ranks.

Beside a connector that hands over the same requests it is refused at start. vLLM's OffloadingConnector has no workers
for the CPU: ``tests/integrations/vllm/test_neighbours.py`` has it.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.vllm.check import check_pair
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, prefill, through
from tests.e2e.vllm.servers import Server, ServerFailed, deploy, kvweave, running

PATIENCE = 30.0
PROMPTS = [prompt_of(length) for length in (2, 50, 129, 300)]
SAVING = {
    "kv_connector": "SavingConnector", "kv_connector_module_path": "tests.e2e.vllm.saving", "kv_role": "kv_both",
}  # fmt: skip
LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
MEASURED = ("transfer_seconds", "post_seconds", "wait_seconds", "transfer_bytes", "transfer_rows")


def beside(role: str, *others: dict[str, Any], **extra: Any) -> dict[str, Any]:
    """Our connector and others in a ``MultiConnector``."""
    return {
        "kv_connector": "MultiConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [kvweave(role, **extra), *others]},
    }


def total(server: Server, name: str) -> float:
    """A counter over all its labels."""
    return sum(value for key, value in metrics(server.url).items() if key.split("{")[0] == f"vllm:{name}")


def wait_total(server: Server, name: str, amount: float) -> None:
    """Waits until a counter has come that far."""
    deadline = time.monotonic() + PATIENCE
    while total(server, name) < amount:
        assert time.monotonic() < deadline, f"{name} stays at {total(server, name)}, {amount} expected"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def pair(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two ranks prefill, one decodes, and each side has a second connector."""
    folder = served_model("llama", models)
    deployments = [
        deploy("prefill", "llama", folder, "tp=2", beside("kv_producer", SAVING, kv_lease_duration=4)),
        deploy("decode", "llama", folder, "tp=1", beside("kv_consumer", SAVING)),
    ]
    root = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    deployments = [replace(deployment, environment={"PYTHONPATH": paths}) for deployment in deployments]
    with running(deployments, tmp_path_factory.mktemp("logs")) as servers:
        yield servers


def test_transfers_are_right_and_all_are_counted(pair: Sequence[Server]) -> None:
    source, target = pair
    for report in check_pair(source.url, target.url, PROMPTS, 8, rounds=1):
        assert report.ok, report
    for name in MEASURED:
        wait_total(target, f"kvweave_{name}_count", len(PROMPTS))
        assert total(target, f"kvweave_{name}_sum") > 0
    for server in pair:
        wait_total(server, "kvweave_handshakes_total", 1)
    wait_total(source, "kvweave_released_total", len(PROMPTS))
    assert total(source, "kvweave_offers_total") == len(PROMPTS)


def test_a_peer_has_one_line_in_the_log(pair: Sequence[Server]) -> None:
    source, target = pair
    assert through(source.url, target.url, prompt_of(80, seed=1), 4).status == 200
    lines = [line for line in target.log.read_text(errors="replace").splitlines() if "is ready: " in line]
    assert len(lines) == 1
    assert "remote_tp=2" in lines[0]


def test_failures_are_counted_by_kind(pair: Sequence[Server]) -> None:
    source, target = pair
    offered = prefill(source.url, prompt_of(100, seed=2))
    params = {**(offered.params or {}), "remote_request_id": "nobody"}
    assert complete(target.url, prompt_of(100, seed=2), 4, kv_transfer_params=params).status == 200
    wait_total(target, "kvweave_failed_total", 1)
    assert any('reason="' in key and value for key, value in metrics(target.url).items() if "kvweave_failed" in key)


def test_an_offer_that_nobody_reads_expires(pair: Sequence[Server]) -> None:
    source, _ = pair
    prefill(source.url, prompt_of(100, seed=3))
    wait_total(source, "kvweave_released_total", total(source, "kvweave_offers_total"))
    expired = [value for key, value in metrics(source.url).items() if 'reason="lease_ended"' in key]
    assert sum(expired) >= 1


def test_no_block_is_held_in_the_end(pair: Sequence[Server]) -> None:
    for server in pair:
        deadline = time.monotonic() + PATIENCE
        while total(server, "kv_cache_usage_perc"):
            assert time.monotonic() < deadline, f"{server.deployment.name}: blocks stay"
            time.sleep(0.2)


@pytest.mark.skipif(importlib.util.find_spec("lmcache") is None, reason="lmcache is not installed")
def test_transfers_beside_lmcache(models: Path, tmp_path: Path) -> None:
    """LMCache has no storage for vLLM's CPU workers and says so; its scheduler side runs, and ours transfers."""
    folder = served_model("llama", models)
    environment = {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5"}
    deployments = [
        replace(deploy(name, "llama", folder, "tp=1", beside(role, LMCACHE)), environment=environment)
        for name, role in (("prefill", "kv_producer"), ("decode", "kv_consumer"))
    ]
    with running(deployments, tmp_path) as (source, target):
        for report in check_pair(source.url, target.url, PROMPTS, 8, rounds=1):
            assert report.ok, report
        wait_total(target, "kvweave_transfer_bytes_count", len(PROMPTS))


def test_what_it_cannot_stand_beside_is_refused_at_start(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    rival = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    refused = deploy("refused", "llama", folder, "tp=1", beside("kv_producer", rival, transfer_mode="write"))
    with pytest.raises(ServerFailed), running([refused], tmp_path):
        pass
    log = (tmp_path / "refused.log").read_text(errors="replace")
    assert "NixlConnector stands beside KVWeaveConnector" in log
    assert "kv_connector_extra_config.transfer_mode: 'write': " in log
