from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvweave.core.interval import Interval
from kvweave.core.parallel import ParallelConfig
from kvweave.errors import ConfigurationError, LayoutError
from kvweave.integrations.vllm.engine import join_ranks, read_parallel
from kvweave.integrations.vllm.layout import RankDescription
from kvweave.protocol.description import decode_layout, encode_layout
from tests.integrations.vllm.engines import Engine
from tests.integrations.vllm.layers import Heads, Layer, Side
from tests.integrations.vllm.pairs import whole_of

MODEL: dict[str, Layer] = {f"model.layers.{layer}.self_attn.attn": Heads(4) for layer in range(3)}


def engine(side: Side, stages: tuple[int, ...] = ()) -> Engine:
    return Engine(side, MODEL, whole_of(MODEL), stages)


def descriptions(side: Side, stages: tuple[int, ...] = ()) -> list[RankDescription]:
    made = engine(side, stages)
    return [made.description(rank) for rank in range(side.pp * side.tp)]


def test_stages_are_those_that_the_workers_hold() -> None:
    layout = engine(Side(2, pp=2), (1, 2)).layout
    assert layout.parallel == ParallelConfig(tp=2, pp=2, stage_layers=(1, 2))
    assert [len(rank.shards[0].places) for rank in layout.ranks] == [1, 1, 2, 2]


def test_the_description_survives_the_wire() -> None:
    layout = engine(Side(2)).layout
    assert decode_layout(encode_layout(layout)).ranks == layout.ranks


def parallel_sizes(**sizes: int) -> Any:
    names = {
        "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dcp": "decode_context_parallel_size",
        "pcp": "prefill_context_parallel_size", "interleave": "cp_kv_cache_interleave_size",
    }  # fmt: skip
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{full: sizes.get(name, 1) for name, full in names.items()})
    )


def test_parallel_sizes_are_vllms() -> None:
    found = read_parallel(parallel_sizes(tp=4, pp=2, dcp=2, interleave=8))
    assert found == ParallelConfig(tp=4, pp=2, dcp=2, interleave=8)


def test_prefill_context_ranks_that_vllm_does_not_tell_apart_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="set --decode-context-parallel-size 2"):
        read_parallel(parallel_sizes(tp=2, pcp=2))


def test_a_rank_that_is_missing_is_named() -> None:
    with pytest.raises(LayoutError, match=r"ranks \['tp0'\], but its parallel sizes give \['tp0', 'tp1'\]"):
        join_ranks(descriptions(Side(2))[:1], "tiny")


def test_no_ranks_at_all() -> None:
    with pytest.raises(LayoutError, match="no worker described itself"):
        join_ranks([], "tiny")


def test_ranks_of_other_sizes_are_refused() -> None:
    first, second = descriptions(Side(2))
    with pytest.raises(LayoutError, match="start all workers of an engine with the same sizes"):
        join_ranks([first, replace(second, parallel=ParallelConfig(tp=4))], "tiny")


def test_stages_with_a_gap_are_refused() -> None:
    first, second = descriptions(Side(1, pp=2), (1, 2))
    with pytest.raises(LayoutError, match=r"stages \[0, 1\), \[2, 3\) do not follow one another"):
        join_ranks([first, replace(second, stage=Interval(2, 3))], "tiny")


def test_ranks_that_contradict_one_another_are_refused() -> None:
    first, second = descriptions(Side(2))
    (group, layer), *rest = second.layers
    other = replace(layer, spec=replace(layer.spec, num_kv_heads=8))  # type: ignore[call-arg]
    with pytest.raises(LayoutError, match=r"tp1: model.layers.0.self_attn.attn caches .*num_kv_heads=8"):
        join_ranks([first, replace(second, layers=((group, other), *rest))], "tiny")


def test_workers_descriptions_are_values_that_vllm_can_send() -> None:
    (description,) = descriptions(Side(1))
    assert pickle.loads(pickle.dumps(description)) == description  # noqa: S301
