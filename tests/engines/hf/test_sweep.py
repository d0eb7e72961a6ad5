"""The sweep goes through every family and pair, and tells what is impossible from what failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
pytest.importorskip("zmq", reason="the control channel needs the extra nixl")
from kvweave.engines.hf.demo import Stage
from kvweave.engines.hf.process import EngineProcess
from kvweave.engines.hf.sweep import PAIRS, SweepResult, sweep


def ended(name: str) -> EngineProcess:
    engine = EngineProcess(name)
    engine.close()
    return engine


def test_the_pairs_have_fewer_more_and_indivisible_ranks_and_stages():
    sizes = [(pair.prefill.parallel.tp, pair.prefill.parallel.pp, pair.decode.parallel.tp) for pair in PAIRS]
    assert sizes == [(4, 1, 2), (2, 1, 4), (3, 1, 2), (3, 1, 1), (2, 2, 1)]


def test_both_sides_of_every_pair_differ_in_blocks_too():
    assert all(pair.prefill.cache.block_size != pair.decode.cache.block_size for pair in PAIRS)


def test_every_family_meets_every_pair_in_order(stage):
    results = list(sweep(stage, ["llama", "llama-mqa"], PAIRS[::4], max_new_tokens=4))
    assert [(result.family, result.pair) for result in results] == [
        (family, pair.name) for family in ("llama", "llama-mqa") for pair in PAIRS[::4]
    ]
    assert all(result.ok for result in results)


def test_every_family_is_answered_right_in_chunks_too(stage):
    results = list(sweep(stage, ["llama", "gemma3", "mamba"], PAIRS[:1], max_new_tokens=4, chunks=4))
    assert [result.ok for result in results] == [True] * 3


def test_what_no_engine_could_build_is_impossible_and_no_fault(stage):
    (result,) = sweep(stage, ["llama"], PAIRS[2:3])
    assert result.impossible.startswith("prefill: k, axis head: 4 units over tp=3")
    assert (result.ok, result.demonstration, result.failed) == (True, None, "")


def test_wrong_tokens_are_a_fault(stage, prefill_process):
    prefill_process.fault = "other prompt"
    (result,) = sweep(stage, ["llama"], PAIRS[:1], max_new_tokens=4)
    prefill_process.fault = ""
    assert result.demonstration.difference is not None
    assert not result.ok


def test_an_engine_that_ended_is_a_fault(stage):
    with Stage(start=ended) as broken:
        (result,) = sweep(broken, ["llama"], PAIRS[:1])
    assert "its process has ended" in result.failed
    assert not result.ok


def test_a_result_without_demonstration_and_reason_is_not_ok():
    assert not SweepResult("llama", "a pair").ok
    assert not replace(SweepResult("llama", "a pair"), failed="why").ok
