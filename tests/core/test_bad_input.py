"""Whatever stands in a field: it works, or an error of kvweave's own names it. Nothing else is ever raised."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kvweave.core.array import Axis, DType
from kvweave.core.cache_config import CacheConfig
from kvweave.core.cost import TransferRates, estimate_request
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout, Region
from kvweave.core.mapping import compute_tp_mapping
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import MOST_RANKS, ParallelConfig
from kvweave.core.plan import plan_transfer
from kvweave.core.plan_document import plan_document
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    StatePart,
)
from kvweave.core.tokens import TokenShare
from kvweave.core.topology import TransferTopology
from kvweave.errors import BlockTableError, ConfigurationError, KVWeaveError, LayoutError, PlanError
from tests.core.engines import BFLOAT16, FLOAT32, engine, heads_of, model_of

ODD = [
    math.nan, math.inf, -1, 0, 1.5, 2.0, True, "4", None, b"4", np.int64(4), np.uint8(200), 2**31, 2**63, 2**64, 2**70,
]  # fmt: skip
SMALL = engine(model_of(heads_of(2)))
SHARD = SMALL.rank().shards[0]


def whole_way(layout: EngineLayout, other: EngineLayout = SMALL) -> None:
    """Planned, proved, written down."""
    plan = plan_transfer(layout, other)
    assert plan.verify(20).ok
    plan_document(plan)


def serve(spec: Callable[[object], LayerSpec], value: object) -> None:
    layout = engine(model_of(spec(value)))
    whole_way(layout, layout)


def described(change: Callable[[object], EngineLayout], value: object) -> None:
    whole_way(change(value))


def with_shard(**fields: object) -> EngineLayout:
    rank = replace(SMALL.rank(), regions=(Region(0, 2**62),), shards=(replace(SHARD, **fields),))
    return replace(SMALL, ranks=(rank,))


def with_geometry(**fields: object) -> EngineLayout:
    return with_shard(num_blocks=1, geometry=replace(SHARD.geometry, **fields))


SPECS: dict[str, Callable[[object], LayerSpec]] = {
    "num_kv_heads": lambda v: FullAttentionSpec(v, 8),
    "head_size": lambda v: FullAttentionSpec(2, v),
    "head_size_v": lambda v: FullAttentionSpec(2, 8, v),
    "sliding_window": lambda v: SlidingWindowSpec(2, 8, v),
    "attention_chunk_size": lambda v: ChunkedLocalAttentionSpec(2, 8, v),
    "latent": MLAAttentionSpec,
    "tokens_per_state": lambda v: MLAAttentionSpec(8, tokens_per_state=v),
    "mamba1 channels": lambda v: MambaSpec.mamba1(v, 2, 4, BFLOAT16, FLOAT32),
    "mamba2 heads": lambda v: MambaSpec.mamba2(v, 2, 2, 2, 4, BFLOAT16, FLOAT32),
    "mamba2 groups": lambda v: MambaSpec.mamba2(2, 2, v, 2, 4, BFLOAT16, FLOAT32),
    "conv kernel": lambda v: MambaSpec.mamba2(2, 2, 2, 2, v, BFLOAT16, FLOAT32),
    "key heads": lambda v: MambaSpec.gdn(v, 2, 2, 2, 4, BFLOAT16, FLOAT32),
    "speculative tokens": lambda v: MambaSpec.kda(2, 2, 4, BFLOAT16, FLOAT32, v),
    "units": lambda v: CircularBufferSpec((StatePart("buffer", (Axis("slot", 4, v),), BFLOAT16),)),
    "dtype": lambda v: FullAttentionSpec(2, 8, dtype=DType.of(v)),
    "dtype bytes": lambda v: FullAttentionSpec(2, 8, dtype=DType("odd", v)),
    "dtype name": lambda v: FullAttentionSpec(2, 8, dtype=DType(v, 2)),
}
ENGINES: dict[str, Callable[[object], EngineLayout]] = {
    **{
        name: lambda v, name=name: engine(model_of(MLAAttentionSpec(4)), **({"tp": 1} | {name: v}))
        for name in ("tp", "pp", "dcp", "pcp", "dp", "interleave", "stage_layers", "stated")
    },
    "one stage": lambda v: engine(model_of(heads_of(2)), stage_layers=(v,)),
    "stated head": lambda v: engine(model_of(heads_of(2)), stated={"head": v}),
    "stated interval": lambda v: engine(model_of(heads_of(2)), stated={"head": (v,)}),
    "end of a stated interval": lambda v: engine(model_of(heads_of(2)), stated={"head": (Interval(0, v),)}),
    **{
        name: lambda v, name=name: engine(model_of(heads_of(2)), 1, CacheConfig(**({"num_blocks": 8} | {name: v})))
        for name in ("block_size", "num_blocks", "kernel_block_size", "page_padding", "speculative_blocks", "device",
                     "layout", "packing", "conv_order", "memory", "dtype")
    },
    **{
        name: lambda v, name=name: SMALL.relocated(
            SMALL.rank().coordinates, [Region(**({"address": 0, "nbytes": 2**20} | {name: v}))]
        )
        for name in ("address", "nbytes", "device")
    },
    **{
        name: lambda v, name=name: with_geometry(**{name: v})
        for name in ("block_entries", "kernel_block_entries", "block_stride", "kernel_stride", "entry_stride")
    },
    "axis stride": lambda v: with_geometry(axis_strides=(v, 2)),
    "shard blocks": lambda v: with_shard(num_blocks=v),
    "scratch blocks": lambda v: with_shard(scratch_blocks=v),
    "place": lambda v: with_shard(places=(replace(SHARD.places[0], offset=v),)),
    "region number": lambda v: with_shard(places=(replace(SHARD.places[0], region=v),)),
    "share": lambda v: with_shard(tokens=TokenShare(v)),
    "share interleave": lambda v: with_shard(tokens=TokenShare(1, 0, v)),
    "layer index": lambda v: engine(
        ModelCache("odd", 4, (KVCacheGroup("full", (CacheLayer("full.0", v, heads_of(2)),)),))
    ),
}  # fmt: skip
TOPOLOGY = {"engine_id": "d", "tp_rank": 0, "tp_size": 1, "block_size": 16, "total_num_kv_heads": 2}
PLAN = plan_transfer(SMALL, SMALL)
REQUEST = {"target": SMALL.rank(), "source_blocks": [0, 1], "target_blocks": [2, 3], "num_tokens": 20}
QUESTIONS: dict[str, Callable[[object], object]] = {
    **{
        name: lambda v, name=name: PLAN.descriptors(**(REQUEST | {name: v}))
        for name in ("source_blocks", "target_blocks", "num_tokens", "start_token", "salt")
    },
    "block": lambda v: PLAN.descriptors(**(REQUEST | {"source_blocks": [0, v]})),
    "group": lambda v: PLAN.descriptors(**(REQUEST | {"source_blocks": {v: [0, 1], "full": [0, 1], "other": []}})),
    "estimate": lambda v: estimate_request(PLAN, v),
    "rates": lambda v: TransferRates(v, v),
    "proof": PLAN.verify,
    **{name: lambda v, name=name: TransferTopology(**(TOPOLOGY | {name: v})) for name in TOPOLOGY},
    "remote tp": lambda v: compute_tp_mapping(TransferTopology(**TOPOLOGY), v, [MLAAttentionSpec(2)]),
    "remote dcp": lambda v: compute_tp_mapping(TransferTopology(**TOPOLOGY), 4, [MLAAttentionSpec(2)], v),
    "remote interleave": lambda v: compute_tp_mapping(TransferTopology(**TOPOLOGY), 2, [MLAAttentionSpec(2)], 2, v),
    "spec": lambda v: compute_tp_mapping(TransferTopology(**TOPOLOGY), 2, [v]),
}
FIELDS: dict[str, Callable[[object], object]] = {
    **{f"spec: {name}": partial(serve, spec) for name, spec in SPECS.items()},
    **{f"engine: {name}": partial(described, change) for name, change in ENGINES.items()},
    **{f"question: {name}": question for name, question in QUESTIONS.items()},
}


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("field", FIELDS)
def test_only_our_own_errors_leave(field: str, value: object) -> None:
    with suppress(KVWeaveError):
        FIELDS[field](value)


@pytest.mark.parametrize("num_tokens", [2**31, 2**62])
def test_a_request_longer_than_its_tables_is_refused_before_it_is_counted_out(num_tokens: int) -> None:
    with pytest.raises(BlockTableError, match=f"group full: 2 blocks, but the tokens need {num_tokens // 16}"):
        PLAN.descriptors(**(REQUEST | {"num_tokens": num_tokens}))


def test_numpy_counts_do_not_wrap_around() -> None:
    """An unsigned count less than a window must not become a count of billions."""
    layout = engine(model_of(SlidingWindowSpec(1, 2, 300), group="window"))
    plan = plan_transfer(layout, layout)
    for kind in (np.uint8, np.uint64):
        with pytest.raises(BlockTableError, match="entry 0 is needed for the next token"):
            plan.descriptors(layout.rank(), [-1], [1], kind(5))


@pytest.mark.parametrize("tables", [np.array(3), "abc", {0: [1], "x": [2]}, [[0], [1]], [{0, 1}]], ids=repr)
def test_what_is_no_table_is_refused_by_side(tables: object) -> None:
    with pytest.raises(BlockTableError, match="source blocks"):
        PLAN.descriptors(**(REQUEST | {"source_blocks": tables}))


@pytest.mark.parametrize("tables", [range(2), [range(2)], (0, 1), [[0, 1]], np.array([[0, 1]], np.uint8)], ids=repr)
def test_any_sequence_of_ids_is_a_table(tables: object) -> None:
    assert PLAN.descriptors(**(REQUEST | {"source_blocks": tables})).total_bytes == 20 * 16


def test_a_salt_may_be_any_text() -> None:
    assert PLAN.descriptors(**REQUEST, salt="\ud800").total_bytes == 20 * 16


def test_more_ranks_than_an_engine_can_have_are_refused_before_they_are_made() -> None:
    with pytest.raises(ConfigurationError, match=f"tp={2**40} make {2**40} ranks; an engine has at most {MOST_RANKS}"):
        ParallelConfig(tp=2**40)


def test_deals_of_tokens_that_hardly_meet_again_are_refused() -> None:
    model, sizes = model_of(MLAAttentionSpec(1)), ((7, 2**20), (5, 2**20 - 1))
    pair = [engine(model, tp, CacheConfig(turn, num_blocks=2), dcp=tp, interleave=turn) for tp, turn in sizes]
    with pytest.raises(
        LayoutError, match=r"5 ranks with interleave 1048575, 7 ranks with interleave 1048576 meet again"
    ):
        plan_transfer(*pair)


@pytest.mark.parametrize("blocks", [10**9, 10**15])
def test_a_huge_pool_is_proved_as_well_as_a_small_one(blocks: int) -> None:
    layout = engine(model_of(MLAAttentionSpec(1)), 1, CacheConfig(num_blocks=blocks))
    assert plan_transfer(layout, layout).verify().ok


def test_a_proof_that_no_machine_could_hold_is_refused() -> None:
    layout = engine(model_of(MLAAttentionSpec(1)), 1, CacheConfig(10**12, num_blocks=2))
    plan = plan_transfer(layout, layout)
    with pytest.raises(PlanError, match=r"elements to label on rank tp0, at most .* are; prove a shorter request"):
        plan.verify()
    assert plan.verify(100).ok
