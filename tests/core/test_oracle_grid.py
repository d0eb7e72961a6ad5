"""The byte oracle over the grid: exhaustive in tensor sizes and heads or groups, pairwise in everything else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import lcm

import pytest
from hypothesis import given, settings

from kvweave.core.cache_config import CacheConfig, ConvOrder, KeyValuePacking, KVLayout
from kvweave.core.layout import EngineLayout
from kvweave.core.model import ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.errors import LayoutError
from kvweave.testing.oracle import Oracle, check_plan, layout_problems
from kvweave.testing.strategies import Transfer, transfers
from tests.core.engines import (
    BFLOAT16,
    FLOAT32,
    deepseek_v4,
    engine,
    faults,
    fits,
    heads_of,
    mamba2_of,
    model_of,
    model_of_groups,
    open_group,
    request_between,
    stated_heads,
)
from tests.core.pairwise import Case, all_pairs

SIZES = range(1, 9)
PAIRS = [pytest.param(p, d, id=f"P{p}>D{d}") for p in SIZES for d in SIZES]
Count = Callable[[int], None]


def small(number: int, block_size: int) -> CacheConfig:
    """One of the six memory orders and two packings, by turns."""
    layouts, packings = list(KVLayout), (KeyValuePacking.CONTENT, KeyValuePacking.REGION)
    return CacheConfig(
        block_size,
        layouts[number % 6],
        num_blocks=5,
        packing=packings[number // 6 % 2],
        conv_order=list(ConvOrder)[number % 2],
    )


def engine_or_refusal(
    model: ModelCache, count: int, parallel: ParallelConfig, settings: CacheConfig
) -> EngineLayout | None:
    """The engine, or None where it is refused with both numbers named; anything else fails the test."""
    stated = bool(parallel.stated)
    if fits(count, parallel.tp) or stated:
        return EngineLayout.build(model, parallel, settings)
    larger, smaller = max(count, parallel.tp), min(count, parallel.tp)
    with pytest.raises(LayoutError, match=f"{larger} does not divide by {smaller}.*state each rank's interval"):
        EngineLayout.build(model, parallel, settings)
    return None


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), PAIRS)
def test_grouped_query_heads_of_every_count(prefill_tp: int, decode_tp: int, count_cases: Count) -> None:
    proved = 0
    for heads in SIZES:
        model = model_of(heads_of(heads, 1))
        sides = (prefill_tp, small(proved, 4)), (decode_tp, small(proved * 5 + 1, 6))
        pair = [engine_or_refusal(model, heads, ParallelConfig(tp), settings) for tp, settings in sides]
        if None not in pair:
            assert faults(*pair, num_tokens=11) == []
            proved += 1
    count_cases(proved)


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), PAIRS)
def test_stated_intervals_make_every_count_possible(prefill_tp: int, decode_tp: int, count_cases: Count) -> None:
    for heads in SIZES:
        model = model_of(heads_of(heads, 1))
        pair = [engine(model, tp, small(heads, 4), stated=stated_heads(heads, tp)) for tp in (prefill_tp, decode_tp)]
        assert faults(*pair, num_tokens=7) == []
    count_cases(len(SIZES))


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), PAIRS)
def test_mamba2_groups_of_every_count(prefill_tp: int, decode_tp: int, count_cases: Count) -> None:
    proved = 0
    for groups in SIZES:
        model = model_of(mamba2_of(groups, lcm(groups, prefill_tp, decode_tp)), group="state")
        sides = (prefill_tp, small(groups, 4)), (decode_tp, small(groups + decode_tp, 4))
        pair = [engine_or_refusal(model, groups, ParallelConfig(tp), settings) for tp, settings in sides]
        if None not in pair:
            assert faults(*pair) == []
            proved += 1
    count_cases(proved)


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), PAIRS)
def test_latents_of_every_pair_with_every_context_parallel_size(
    prefill_tp: int, decode_tp: int, count_cases: Count
) -> None:
    model = model_of(MLAAttentionSpec(3))
    shapes = [[dcp for dcp in SIZES if tp % dcp == 0] for tp in (prefill_tp, decode_tp)]
    for prefill_dcp in shapes[0]:
        for decode_dcp in shapes[1]:
            prefill = engine(model, prefill_tp, small(prefill_dcp, 4), dcp=prefill_dcp, interleave=2)
            assert faults(prefill, engine(model, decode_tp, small(decode_dcp, 6), dcp=decode_dcp), num_tokens=19) == []
    count_cases(len(shapes[0]) * len(shapes[1]))


KINDS = {
    "heads": model_of(*[FullAttentionSpec(12, 1)] * 3),
    "two heads": model_of(*[FullAttentionSpec(2, 2)] * 3),
    "K and V differ": model_of(*[FullAttentionSpec(4, 2, 3)] * 3),
    "window": model_of(*[SlidingWindowSpec(4, 1, 40)] * 3, group="window.40"),
    "window of one": model_of(*[SlidingWindowSpec(1, 2, 1)] * 3, group="window.1"),
    "chunk": model_of(*[ChunkedLocalAttentionSpec(4, 1, 48)] * 3, group="chunk.48"),
    "latent": model_of(*[MLAAttentionSpec(6)] * 3),
    "windowed latent": model_of(*[MLAAttentionSpec(6, sliding_window=70)] * 3, group="window.70"),
    "rate 4": model_of(*[MLAAttentionSpec(6, tokens_per_state=4)] * 3, group="rate.4"),
    "rate 128": model_of(*[MLAAttentionSpec(6, tokens_per_state=128)] * 3, group="rate.128"),
    "mamba1": model_of(*[MambaSpec.mamba1(24, 2, 4, BFLOAT16, FLOAT32)] * 3, group="state"),
    "mamba2 one group": model_of(*[mamba2_of(1, 24)] * 3, group="state"),
    "mamba2 groups": model_of(*[MambaSpec.mamba2(24, 2, 4, 3, 4, BFLOAT16, BFLOAT16)] * 3, group="state"),
    "gated delta net": model_of(*[MambaSpec.gdn(4, 24, 2, 3, 4, BFLOAT16, FLOAT32)] * 3, group="state"),
    "kimi delta": model_of(*[MambaSpec.kda(24, 2, 4, BFLOAT16, FLOAT32)] * 3, group="state"),
    "open group": model_of(*[open_group()] * 3, group="state"),
    "hybrid": model_of_groups(
        {"full": [FullAttentionSpec(2, 2), MLAAttentionSpec(5)], "state": [mamba2_of(1, 24)] * 3}
    ),
    "uneven heads": model_of_groups(
        {"window.20": [SlidingWindowSpec(8, 1, 20)] * 3, "full": [FullAttentionSpec(1, 3)] * 3}
    ),
    "deepseek v4": deepseek_v4(),
}
TENSOR_SIZES = (1, 2, 3, 4, 8)
STAGES = ((1, None), (2, None), (2, (2, 1)), (2, (0, 3)), (3, None))
AXES: dict[str, tuple[object, ...]] = {
    "kind": tuple(KINDS),
    "blocks": ((16, 128), (128, 16), (16, 24), (64, 64)),
    "prefill_tp": TENSOR_SIZES,
    "decode_tp": TENSOR_SIZES,
    "prefill_dcp": (1, 2, 4),
    "decode_dcp": (1, 2, 4),
    "prefill_interleave": (1, 4, 16),
    "decode_interleave": (1, 8),
    "prefill_pcp": (1, 2),
    "decode_pcp": (1, 2),
    "prefill_stages": STAGES,
    "decode_stages": STAGES,
    "prefill_kernels": (1, 2, 4),
    "decode_kernels": (1, 2, 8),
    "prefill_layout": tuple(KVLayout),
    "decode_layout": tuple(KVLayout),
    "prefill_packing": tuple(KeyValuePacking),
    "decode_packing": tuple(KeyValuePacking),
    "prefill_conv_order": tuple(ConvOrder),
    "decode_conv_order": tuple(ConvOrder),
    "prefill_padding": (0, 12),
    "decode_padding": (0, 5),
    "prefill_scratch": (0, 2),
    "decode_scratch": (0, 1),
    "tokens": (1, 127, 128, 129, 150, 192),
    "prefix": (0.0, 0.1, 0.5, 1.0),
    "let_go": (0.0, 0.5, 1.0),
    "spare": (0, 2),
    "stripes": (1, 2, 3, 4, 8),
}  # fmt: skip
MOST_TOKENS = 192


@cache
def is_possible(kind: str, block: int, tp: int, dcp: int, pcp: int, interleave: int, packing: str) -> bool:
    """Whether an engine could be so; what else an engine has never decides that."""
    try:
        parallel = ParallelConfig(tp, dcp=dcp, pcp=pcp, interleave=interleave)
        EngineLayout.build(KINDS[kind], parallel, CacheConfig(block, num_blocks=1, packing=packing))
    except ValueError:
        return False
    return True


def are_possible(case: Case) -> bool:
    names = ("tp", "dcp", "pcp", "interleave", "packing")
    sides = zip(case["blocks"], ("prefill", "decode"), strict=True)
    return all(is_possible(case["kind"], block, *(case[f"{side}_{name}"] for name in names)) for block, side in sides)


def engine_of(case: Case, side: str, block: int) -> EngineLayout:
    tp, dcp, pcp, interleave, (pp, stage_layers), kernels, padding, scratch = (
        case[f"{side}_{name}"] for name in ("tp", "dcp", "pcp", "interleave", "stages", "kernels", "padding", "scratch")
    )
    parallel = ParallelConfig(tp, pp, dcp, pcp, interleave=interleave, stage_layers=stage_layers)
    settings = CacheConfig(
        block, case[f"{side}_layout"], MOST_TOKENS // block + 4, block // kernels, case[f"{side}_packing"],
        case[f"{side}_conv_order"], padding, speculative_blocks=scratch,
    )  # fmt: skip
    return EngineLayout.build(KINDS[case["kind"]], parallel, settings)


def prove(case: Case) -> None:
    prefill, decode = (engine_of(case, *side) for side in zip(("prefill", "decode"), case["blocks"], strict=True))
    assert layout_problems(prefill) == [] and layout_problems(decode) == [], case
    oracle, tokens = Oracle(prefill, decode), case["tokens"]
    request = request_between(
        oracle, tokens, round(tokens * case["prefix"]), let_go=case["let_go"], spare=case["spare"],
        stripes=case["stripes"],
    )  # fmt: skip
    assert check_plan(plan_transfer(prefill, decode), request, oracle) == [], case


@cache
def pairwise_cases() -> list[Case]:
    return list(all_pairs(AXES, are_possible, seed=1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_of_the_other_axes(kind: str, count_cases: Count) -> None:
    cases = [case for case in pairwise_cases() if case["kind"] == kind]
    for case in cases:
        prove(case)
    assert cases
    count_cases(len(cases))


PRODUCTS = 300


@settings(max_examples=PRODUCTS)
@given(transfer=transfers())
def prove_product(transfer: Transfer) -> None:
    assert layout_problems(transfer.prefill) == []
    plan = plan_transfer(transfer.prefill, transfer.decode)
    assert check_plan(plan, transfer.request, transfer.oracle) == []


def test_products_of_all_axes(count_cases: Count) -> None:
    prove_product()
    count_cases(PRODUCTS)
