"""The load test's figures, and one short run of it over NIXL."""

from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from bench.load import Ended, Figures, measure


def test_figures_count_what_was_delivered() -> None:
    ended = [Ended(0.001 * number, 2_000_000, 30) for number in range(1, 101)] + [Ended(5.0, 0, 0)]
    found = Figures.of("pair", 8, ended, 2.0)
    assert (found.requests, found.failed, found.requests_per_second) == (100, 1, 50)
    assert (found.p50_ms, found.p99_ms) == (pytest.approx(50.5), pytest.approx(99.01))
    assert found.gigabytes_per_second == pytest.approx(0.1)


def test_a_run_without_a_delivery_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="none of 1 requests"):
        Figures.of("pair", 1, [Ended(1.0, 0, 0)], 1.0)


def test_a_short_run_delivers_every_byte_and_loses_no_request() -> None:
    found = list(measure("64 tokens, tp 3 > 1, block 16 > 64", at_once=(1, 4), seconds=0.5))
    assert [figures.at_once for figures in found] == [1, 4]
    assert all(figures.requests > 0 and not figures.failed for figures in found)
    assert found[0].request_bytes == 64 * 30 * 2 * 3 * 64 * 2
