"""The figures of the progressive benchmark, and one short run of it over NIXL in two processes."""

from __future__ import annotations

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from bench.progressive import Figures, measure
from bench.progressive_pair import CHUNKS, NUM_TOKENS, blocks

from bench import progressive

FIGURES = Figures(100.0, 30.0, 0.3, 38.0, 25.0, 10**8, 75 * 10**6, 4, 7)


def test_figures_mean_something_only_if_a_chunk_takes_longer_to_compute_than_to_move() -> None:
    assert FIGURES.meaningful
    assert not Figures(100.0, 30.0, 0.3, 24.0, 25.0, 1, 1, 4, 7).meaningful


def test_the_text_has_both_times_and_their_ratio() -> None:
    assert "30.0 ms progressive, 100.0 ms at once: 0.30 of it" in progressive._text(FIGURES)


def test_each_side_has_its_blocks_in_an_order_of_its_own() -> None:
    assert sorted(blocks("prefill", 1)) == sorted(blocks("decode", 1))
    assert blocks("prefill", 1) != blocks("decode", 1)


def test_a_short_run_delivers_every_byte_and_many_of_them_early() -> None:
    found = measure(rounds=1)
    assert found.request_bytes == NUM_TOKENS * 32 * 2 * 8 * 128 * 2
    assert 0 < found.early_bytes <= found.request_bytes * (CHUNKS - 1) // CHUNKS
