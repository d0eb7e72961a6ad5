"""Windowed latents, entries of 4 and of 128 tokens, indexer entries and open groups in one model."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.plan import plan_transfer
from tests.core.engines import deepseek_v4, engine, faults

MODEL = deepseek_v4()
LENGTHS = sorted({edge + near for edge in (4, 32, 128, 160, 256) for near in (-1, 0, 1)})
PAIRS = [pytest.param(8, 4, id="P8>D4"), pytest.param(4, 8, id="P4>D8")]


def engine_of(tp: int, block: int = 16) -> object:
    return engine(MODEL, tp, CacheConfig(block, num_blocks=20))


@pytest.mark.parametrize("num_tokens", LENGTHS)
@pytest.mark.parametrize(("p", "d"), PAIRS)
def test_entry_counts_open_part_and_window_edge_are_right(p: int, d: int, num_tokens: int) -> None:
    assert faults(engine_of(p), engine_of(d, 24), num_tokens) == []


@pytest.mark.parametrize("held", [1, 3, 4, 5, 127, 128, 129, 130])
def test_a_prefix_may_end_in_the_middle_of_a_group(held: int) -> None:
    assert faults(engine_of(2), engine_of(3, 24), 200, held) == []


def test_an_entry_moves_when_its_last_token_is_there_and_not_held_yet() -> None:
    plan = plan_transfer(engine_of(1), engine_of(1))
    tables = {"window.32": np.arange(9), "rates": np.arange(2), "state": [3]}
    moved = [plan.descriptors(plan.decode.rank(), tables, tables, n, 0).total_bytes for n in (123, 124, 127, 128)]
    windowed, rate_4, rate_128, indexer = 2 * 3 * 2, 3 * 2, 2 * 2, 2 * 2
    assert np.diff(moved).tolist() == [
        windowed + rate_4 + indexer,
        3 * windowed,
        windowed + rate_4 + indexer + rate_128,
    ]


@pytest.mark.parametrize(("p", "d"), PAIRS)
def test_every_decode_rank_reads_each_replicated_array_once(p: int, d: int) -> None:
    plan = plan_transfer(engine_of(p), engine_of(d))
    for reads in plan.reads.values():
        read = [(layer, one.array.part) for one in reads for layer in one.layers]
        assert len(read) == len(set(read)) == 2 + 3 + 2 * 4
        assert all(len(one.sources) == p for one in reads)


@pytest.mark.parametrize(("p", "d"), PAIRS)
def test_the_reads_are_spread_over_the_replicas(p: int, d: int) -> None:
    plan = plan_transfer(engine_of(p), engine_of(d))
    chosen = [ranks for target in plan.reads for ranks in plan.sources(target).values()]
    assert {len(ranks) for ranks in chosen} == {1}
    counts = np.bincount([ranks[0].tp for ranks in chosen], minlength=p)
    assert counts.max() - counts[counts > 0].min() == 0 and np.count_nonzero(counts) == min(p, d)
