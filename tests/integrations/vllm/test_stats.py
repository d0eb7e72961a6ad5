"""Statistics: collected from all threads, aggregated over intervals, counted by Prometheus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvweave.integrations.vllm.stats import KVWeavePromMetrics, KVWeaveStats, TransferStats
from kvweave.runtime import Delivered

SECONDS = {"peer": 0.5, "claim": 0.25, "post": 0.01, "read": 0.125, "grant": 0.25}
DELIVERED = Delivered(3 << 20, 12, SECONDS, {}, {})


def interval() -> KVWeaveStats:
    collected = TransferStats()
    collected.add_transfer(DELIVERED)
    collected.count("failed", "late")
    collected.count("handshakes")
    taken = collected.take()
    assert taken is not None
    assert collected.take() is None
    return taken


def test_an_interval_holds_what_happened_in_it() -> None:
    data = interval().data
    assert (data["transfer_seconds"], data["post_seconds"], data["wait_seconds"]) == ([0.125], [0.01], [1.0])
    assert (data["bytes"], data["rows"]) == ([3 << 20], [12])
    assert data["counts"] == {"failed:late": 1, "handshakes": 1}


def test_what_moved_early_is_counted() -> None:
    collected = TransferStats()
    collected.add_transfer(replace(DELIVERED, early_bytes=7))
    assert collected.take().data["counts"] == {"early_bytes": 7}


def test_intervals_add_up() -> None:
    total = KVWeaveStats().aggregate(interval()).aggregate(interval())
    assert total.data["bytes"] == [3 << 20] * 2
    assert total.data["counts"] == {"failed:late": 2, "handshakes": 2}


def test_what_is_sent_to_the_front_end_comes_back() -> None:
    assert KVWeaveStats(interval().to_dict()).data == interval().data


def test_empty_until_something_happens() -> None:
    stats = KVWeaveStats()
    assert stats.is_empty()
    assert not interval().is_empty()
    full = interval()
    full.reset()
    assert full.is_empty()


def test_an_interval_in_a_few_numbers() -> None:
    reduced = interval().reduce()
    assert (reduced["transfers"], reduced["MB per transfer"], reduced["mean transfer (ms)"]) == (1, 3.0, 125.0)
    assert reduced["failed late"] == 1
    assert KVWeaveStats().reduce() == {"transfers": 0}


def test_an_abort_is_no_failure_and_other_counts_stay_at_home() -> None:
    collected = TransferStats()
    collected.count("failed", "aborted")
    collected.count("seconds", "read", 0.5)
    taken = collected.take()
    assert taken is not None
    assert taken.data["counts"] == {"declined": 1}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def prometheus(registry: CollectorRegistry) -> KVWeavePromMetrics:
    kinds = {kind: bound(kind, registry) for kind in (Counter, Gauge, Histogram)}
    config: Any = type("Config", (), {"kv_transfer_config": None})
    return KVWeavePromMetrics(config, kinds, ["model", "engine"], {0: ["tiny", "0"], 1: ["tiny", "1"]})


def bound(kind: Any, registry: CollectorRegistry) -> Any:
    return lambda **options: kind(registry=registry, **options)


def test_prometheus_counts_by_engine_and_reason(registry: CollectorRegistry) -> None:
    prometheus(registry).observe(interval().data, 1)
    labels = {"model": "tiny", "engine": "1"}
    assert registry.get_sample_value("vllm:kvweave_failed_total", labels | {"reason": "late"}) == 1
    assert registry.get_sample_value("vllm:kvweave_handshakes_total", labels | {"reason": ""}) == 1
    assert registry.get_sample_value("vllm:kvweave_transfer_bytes_sum", labels) == 3 << 20
    assert registry.get_sample_value("vllm:kvweave_wait_seconds_sum", labels) == 1.0
