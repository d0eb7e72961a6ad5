"""Prometheus: every count of the engines arrives under its name, and every name of ours is known there."""

from __future__ import annotations

import re

import pytest

from kvweave.runtime.metrics import Metrics
from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, joined, wait_until

prometheus_client = pytest.importorskip("prometheus_client")

from kvweave.runtime.prometheus import COUNTERS, PrometheusObserver  # noqa: E402


def test_counts_and_stages_of_a_request_arrive() -> None:
    registry = prometheus_client.CollectorRegistry()
    observer = PrometheusObserver("decode", registry)
    with joined() as pair:
        pair.decode._recorder._observer = observer
        delivered = pair.decode.fetch(pair.offer(), TARGET_BLOCKS).result(PATIENCE)
        wait_until(lambda: registry.get_sample_value("kvweave_decode_delivered_total") == 1)
        assert registry.get_sample_value("kvweave_decode_bytes_total") == delivered.nbytes
        for stage in delivered.seconds:
            assert registry.get_sample_value("kvweave_decode_stage_seconds_count", {"stage": stage}) == 1


def test_failures_have_their_reason() -> None:
    registry = prometheus_client.CollectorRegistry()
    PrometheusObserver("decode", registry)("failed", "late", 2)
    assert registry.get_sample_value("kvweave_decode_failed_total", {"reason": "late"}) == 2


def test_every_documented_total_is_exported() -> None:
    documented = set(re.findall(r"``(\w+)``", Metrics.__doc__ or ""))
    assert documented - {"seconds"} == set(COUNTERS)


def test_unknown_names_are_left_out() -> None:
    PrometheusObserver("decode", prometheus_client.CollectorRegistry())("of a later version", "x", 1)
