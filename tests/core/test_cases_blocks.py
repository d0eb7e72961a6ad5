"""Block sizes, token ranges, memory orders, windows and pipeline stages: the published cases and all of their kind."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvweave.core.cache_config import CacheConfig, KeyValuePacking, KVLayout
from kvweave.core.layout import EngineLayout
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.errors import BlockTableError
from kvweave.testing.oracle import Oracle, check_plan
from kvweave.testing.requests import Request
from tests.core.engines import engine, faults, heads_of, mamba2_of, model_of, model_of_groups, request_between

HEADS = model_of(heads_of(4))
ORDERS = list(product(KVLayout, (KeyValuePacking.CONTENT, KeyValuePacking.PAGE, KeyValuePacking.REGION)))


def paged(block: int, layout: str = "HND", tp: int = 1, **settings: object) -> EngineLayout:
    return engine(HEADS, tp, CacheConfig(block, layout, num_blocks=40, **settings))


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 127, 128, 129, 256, 300])
@pytest.mark.parametrize(("one", "other"), [(128, 16), (16, 128), (16, 24), (24, 16)], ids=str)
def test_blocks_of_unequal_size_match_by_token_position(one: int, other: int, num_tokens: int) -> None:
    assert faults(paged(one), paged(other, "NHD"), num_tokens) == []


@pytest.mark.parametrize(("one", "other"), [(16, 64), (64, 32), (32, 8), (128, 128)], ids=str)
def test_kernel_blocks_may_have_different_ratios_on_both_sides(one: int, other: int) -> None:
    prefill, decode = paged(128, kernel_block_size=one), paged(64, "NHD", 2, kernel_block_size=min(other, 64))
    assert faults(prefill, decode, 301, 70) == faults(decode, prefill, 301, 70) == []


@pytest.mark.parametrize("num_tokens", [2111, 2112, 4192, 4193, 6400])
def test_blocks_whose_ratio_is_no_integer(num_tokens: int) -> None:
    model = model_of(FullAttentionSpec(2, 1))
    prefill, decode = (engine(model, 1, CacheConfig(block, num_blocks=5)) for block in (4192, 2112))
    assert faults(prefill, decode, num_tokens) == faults(decode, prefill, num_tokens) == []


def test_equal_byte_length_proves_nothing() -> None:
    """A block of 32 tokens of one head and one of 16 tokens of two heads have the same size."""
    model = model_of(heads_of(2))
    prefill, decode = (engine(model, tp, CacheConfig(block, num_blocks=8)) for tp, block in ((2, 32), (1, 16)))
    assert prefill.rank().shards[0].geometry.block_stride == decode.rank().shards[0].geometry.block_stride
    assert faults(prefill, decode, 70) == faults(decode, prefill, 70) == []


def test_a_prefix_hit_reads_the_block_of_the_same_position() -> None:
    """Block 64, 2048 tokens valid, the decode side holds 31 blocks: its block number 31 comes from number 31."""
    layout = engine(model_of(MLAAttentionSpec(4)), cache=CacheConfig(64, num_blocks=100))
    source, target = np.arange(33) + 50, np.arange(33)[::-1]
    rows = plan_transfer(layout, layout).descriptors(layout.rank(), source, target, 2048, 31 * 64)[
        layout.ranks[0].coordinates
    ]
    region, block_bytes = layout.rank().regions[0].address, 64 * 8
    assert [(int(a) - region) / block_bytes for a in (*rows.source_address, *rows.target_address)] == [81, 1]
    assert rows.nbytes.tolist() == [block_bytes]


@pytest.mark.parametrize("start", [0, 1, 15, 16, 17, 63, 64, 100, 129, 130])
@pytest.mark.parametrize(("one", "other"), [(16, 64), (64, 16), (16, 24)], ids=str)
def test_a_prefix_may_end_anywhere(one: int, other: int, start: int) -> None:
    assert faults(paged(one), paged(other, "NHD"), 130, start) == []


@pytest.mark.parametrize("layout", list(KVLayout))
@pytest.mark.parametrize("padding", [2, 48])
def test_padding_is_never_copied_and_never_a_stride(layout: str, padding: int) -> None:
    padded, tight = paged(16, layout, page_padding=padding, kernel_block_size=8), paged(24, tp=2)
    assert faults(padded, tight, 70) == faults(tight, padded, 70) == []


def test_the_head_stride_comes_from_the_page_without_padding() -> None:
    strides = [paged(16, page_padding=padding).rank().shards[0].geometry for padding in (0, 100)]
    assert strides[0].axis_strides == strides[1].axis_strides
    assert strides[1].block_stride == strides[0].block_stride + 100


@pytest.mark.parametrize(("source", "target"), list(product(ORDERS, ORDERS))[::7], ids=" ".join)
def test_memory_orders_mix(source: tuple[str, str], target: tuple[str, str]) -> None:
    model = model_of(*[heads_of(4)] * 2)
    sides = [
        engine(model, tp, CacheConfig(block, layout, num_blocks=8, packing=packing))
        for tp, block, (layout, packing) in ((2, 16, source), (1, 24, target))
    ]
    assert faults(*sides, 45) == []


WINDOW, BLOCK = 16, 16
EDGES = sorted({base + near for base in range(WINDOW, 6 * BLOCK, BLOCK) for near in (-2, -1, 0, 1)})


def windowed(spec: LayerSpec, block: int, tp: int = 1) -> EngineLayout:
    return engine(model_of(spec, group="window"), tp, CacheConfig(block, num_blocks=16))


@pytest.mark.parametrize("num_tokens", EDGES)
@pytest.mark.parametrize("other", [16, 8, 24, 64])
@pytest.mark.parametrize("spec", [SlidingWindowSpec(2, 2, WINDOW), MLAAttentionSpec(3, sliding_window=WINDOW)],
                         ids=["heads", "latent"])  # fmt: skip
def test_all_that_the_next_token_sees_arrives(spec: LayerSpec, other: int, num_tokens: int) -> None:
    """Both engines have let go of what they may, whether the window begins with a block or beside one."""
    assert faults(windowed(spec, BLOCK, 2), windowed(spec, other), num_tokens) == []


@pytest.mark.parametrize("num_tokens", [31, 32, 33, 48, 49, 60])
def test_chunks_begin_where_the_next_token_is(num_tokens: int) -> None:
    spec = ChunkedLocalAttentionSpec(2, 2, 24)
    assert faults(windowed(spec, 16), windowed(spec, 8), num_tokens) == []


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_block_let_go_too_early_is_refused(side: str) -> None:
    """The incumbent's wrong first tokens: the prefill side has freed a token that the next one still sees."""
    layout = windowed(SlidingWindowSpec(2, 2, WINDOW), BLOCK)
    tables = {name: np.array([-1, 4, 5]) for name in ("source", "target")}
    plan = plan_transfer(layout, layout)
    assert plan.descriptors(layout.rank(), tables["source"], tables["target"], 3 * BLOCK).num_rows > 0
    tables[side][2] = -1
    with pytest.raises(BlockTableError, match=f"{side} blocks, group window: entry 33 is needed.*null"):
        plan.descriptors(layout.rank(), tables["source"], tables["target"], 3 * BLOCK)


@pytest.mark.parametrize("let_go", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("one", "other"), [(32, 128), (16, 64), (16, 24)], ids=str)
def test_a_block_that_the_source_could_not_fill_is_named(one: int, other: int, let_go: float) -> None:
    model = model_of_groups({"window": [SlidingWindowSpec(2, 1, 40)], "full": [heads_of(2)]})
    prefill, decode = (engine(model, 1, CacheConfig(block, num_blocks=24)) for block in (one, other))
    oracle = Oracle(prefill, decode)
    ahead, behind = (request_between(oracle, 300, let_go=share) for share in (let_go, 0.0))
    request = Request(300, 0, ahead.source, behind.target)
    plan = plan_transfer(prefill, decode)
    named = plan.descriptors(decode.rank(), request.source, request.target, 300).incomplete
    lost = round((300 - 40 + 1) // one * let_go) * one
    assert named == ({"window": tuple(sorted(behind.target["window"][: -(-lost // other)]))} if lost else {})
    assert check_plan(plan, request, oracle) == []


STAGES = [
    pytest.param({"pp": 2}, {}, id="PP2>PP1"),
    pytest.param({"pp": 2}, {"pp": 3}, id="PP2>PP3"),
    pytest.param({"pp": 2, "stage_layers": (5, 2)}, {"pp": 3, "stage_layers": (1, 0, 6)}, id="uneven"),
    pytest.param({"pp": 4}, {"pp": 3, "stage_layers": (3, 3, 1)}, id="PP4>PP3"),
]


@pytest.mark.parametrize(("prefill_stages", "decode_stages"), STAGES)
@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 4), (4, 3)], ids=str)
def test_each_layer_and_head_moves_once_between_stages(
    p: int, d: int, prefill_stages: dict[str, object], decode_stages: dict[str, object]
) -> None:
    model = model_of_groups({"full": [heads_of(12, 1)] * 7, "state": [mamba2_of(1, 12)] * 4})
    prefill, decode = engine(model, p, **prefill_stages), engine(model, d, **decode_stages)
    assert faults(prefill, decode) == faults(decode, prefill) == []
    moved = [
        (layer, head)
        for reads in plan_transfer(prefill, decode).reads.values()
        for read in reads if read.array.part == "k"
        for layer in read.layers
        for head in range(read.box[0].start, read.box[0].stop)
    ]  # fmt: skip
    assert sorted(moved) == sorted((f"full.{layer}", head) for layer in range(7) for head in range(12))
