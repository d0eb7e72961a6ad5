"""Leases between real servers: a queued request keeps its offer, however long it waits."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.vllm.check import compare, reference
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, prefill
from tests.e2e.vllm.servers import deploy, kvweave, running

LEASE_SECONDS = 3
ONE_AT_A_TIME = ("--max-num-seqs", "1")


def test_a_queued_request_keeps_its_offer(models: Path, tmp_path: Path) -> None:
    folder = served_model("llama", models)
    pair = [
        deploy("prefill", "llama", folder, "tp=1", kvweave("kv_producer", kv_lease_duration=LEASE_SECONDS)),
        deploy("decode", "llama", folder, "tp=1", kvweave("kv_consumer", "fail"), ONE_AT_A_TIME),
    ]
    with running(pair, tmp_path) as (source, target), ThreadPoolExecutor() as pool:
        prompt = prompt_of(200, seed=1)
        body = {"model": "model", "prompt": prompt_of(10), "max_tokens": 2000, "stream": True, "ignore_eos": True}
        request = urllib.request.Request(
            f"{target.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as running_request:
            running_request.readline()
            offered = prefill(source.url, prompt)
            queued = pool.submit(complete, target.url, prompt, 8, kv_transfer_params=offered.params)
            time.sleep(2 * LEASE_SECONDS)
            assert not queued.done()
        report = compare([prompt], [reference(target.url, prompt, 8)], [queued.result()])
        assert report.ok, report
        assert any("transfer_bytes_count" in key and value == 1 for key, value in metrics(target.url).items())
        assert not any("lease_ended" in key and value for key, value in metrics(source.url).items())
