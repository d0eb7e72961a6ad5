"""Attention moved between live tensors of vLLM's layouts: the target must be as vLLM itself would have written it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, UniformTypeKVCacheSpecs, iter_layer_specs

from kvweave.integrations.vllm.whole_model import WholeModel
from tests.integrations.vllm.engines import Engine, check_pair
from tests.integrations.vllm.layers import Heads, Layer, Side
from tests.integrations.vllm.pairs import run, whole_of

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
HEADS = [(4, (2, 4)), (2, (4, 1)), (1, (2, 1)), (1, (1, 2)), (3, (3, 1)), (6, (2, 3))]


def llama(heads: int = 4, layers: int = 3, **values: Any) -> dict[str, Layer]:
    return {f"model.layers.{layer}.self_attn.attn": Heads(heads, **values) for layer in range(layers)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_feeds_every_other_kind(layout: str) -> None:
    run(llama(), Side(2, layout=layout, block_size=16), Side(1, layout="LBHNC", block_size=32))
    run(llama(), Side(1, layout="LBNHC", block_size=32), Side(2, layout=layout, block_size=16))


@pytest.mark.parametrize(("heads", "pair"), HEADS, ids=str)
def test_heads_land_where_vllm_reads_them(heads: int, pair: tuple[int, int]) -> None:
    run(llama(heads), Side(pair[0]), Side(pair[1]), start_token=21)


@pytest.mark.parametrize("sizes", [(64, 128), (128, 64), (32, 96), (64, 64)], ids=str)
@pytest.mark.parametrize(("isa", "dtype"), [("vec", torch.float32), ("vec16", torch.float32), ("vec", torch.bfloat16)])
def test_cpu_tiles_are_those_of_vllms_kernel(sizes: tuple[int, int], isa: str, dtype: torch.dtype) -> None:
    sides = [Side(2, block_size=sizes[0]), Side(1, block_size=sizes[1])]
    prefill, decode = (replace(side, layout="LBHNC", backend="CPU_ATTN", isa=isa) for side in sides)
    run(llama(dtype=dtype, layers=2), prefill, decode, num_tokens=200)


@pytest.mark.parametrize("sizes", [(64, 128), (96, 32), (64, 64)], ids=str)
def test_amx_tiles_are_those_of_vllms_kernel(sizes: tuple[int, int]) -> None:
    if not torch.cpu._is_amx_tile_supported():
        pytest.skip("this processor has no AMX, so vLLM's kernel cannot write its tiles")
    sides = [Side(1, block_size=sizes[0]), Side(2, block_size=sizes[1])]
    prefill, decode = (replace(side, layout="LBHNC", backend="CPU_ATTN", isa="amx") for side in sides)
    run(llama(2, layers=2, head_size=64), prefill, decode, num_tokens=147)


def test_a_cpu_engine_feeds_one_whose_backend_keeps_rows() -> None:
    cpu = Side(2, block_size=64, layout="LBHNC", backend="CPU_ATTN", isa="vec")
    run(llama(layers=2), cpu, Side(4, block_size=16, layout="BLNHC"))


def test_planes_of_k_and_v_become_rows() -> None:
    run(llama(), Side(2, backend="B12X", layout="LBHNC"), Side(1))
    run(llama(), Side(1), Side(2, backend="B12X", layout="LHBNC"))


def test_quantised_rows_move_as_one_piece() -> None:
    model = llama(dtype=torch.uint8, quantised_row=56)
    run(model, Side(2, backend="TURBOQUANT"), Side(1, backend="TURBOQUANT", layout="LBHNC", block_size=32))


KERNELS = {
    "one side": ((64, 16), (32, None)), "other ratios": ((64, 16), (96, 48)), "no common ratio": ((48, 16), (80, 40)),
}  # fmt: skip


@pytest.mark.parametrize("sizes", list(KERNELS.values()), ids=list(KERNELS))
def test_kernel_blocks_smaller_than_logical_ones(sizes: tuple[tuple[int, int | None], ...]) -> None:
    prefill, decode = (
        Side(tp, block_size=block, kernel_block=kernel, layout="LBHNC")
        for tp, (block, kernel) in zip((2, 1), sizes, strict=True)
    )
    run(llama(), prefill, decode, 150)


@pytest.mark.parametrize("pair", [(1, 1), (2, 1), (1, 2)], ids=str)
def test_padded_pages(pair: tuple[int, int]) -> None:
    page = 2 * 4 * 16 * 32 * 2
    run(llama(padded=page + 4096), Side(pair[0], layout="LBHNC"), Side(pair[1], layout="BLHNC"))


def test_keys_and_values_of_different_sizes() -> None:
    run(llama(head_size=64, value_size=32), Side(2, backend="FLASH_ATTN_DIFFKV"), Side(1, block_size=32))


@pytest.mark.parametrize("dcp", [(2, 1), (1, 2), (4, 2)], ids=str)
def test_heads_that_are_replicated_for_context_parallelism(dcp: tuple[int, int]) -> None:
    sides = [Side(8, dcp=count, interleave=8, block_size=16 * (number + 1)) for number, count in enumerate(dcp)]
    run(llama(2, layers=1), *sides, num_tokens=150)


def test_layers_of_one_kind_and_other_sizes_are_a_uniform_group() -> None:
    model: dict[str, Layer] = {
        "model.layers.0.self_attn.attn": Heads(4), "model.layers.1.self_attn.attn": Heads(2, head_size=48),
    }  # fmt: skip
    (group,) = Engine(Side(2), model, whole_of(model)).configs[0].kv_cache_groups
    assert isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs)
    run(model, Side(2), Side(1, block_size=32, layout="BLHNC"), start_token=40)


@pytest.mark.parametrize("stages", [((), ()), ((1, 2), ())], ids=["one stage", "two stages"])
def test_a_draft_models_layers_move_with_its_own_heads(stages: tuple[tuple[int, ...], ...]) -> None:
    drafts: dict[str, Layer] = {
        "model.layers.3.self_attn.attn": Heads(2), "draft_model.layers.0.self_attn.attn": Heads(2, head_size=64),
    }  # fmt: skip
    whole = WholeModel("tiny", 3, None, "a test says so", (4, 4, 4), draft_heads=2)
    run(llama() | drafts, Side(2, pp=len(stages[0]) or 1), Side(1, block_size=32), whole=whole, stages=stages)


def test_a_group_whose_pages_vllm_has_to_fit_takes_longer_blocks() -> None:
    window: dict[str, Any] = {"kind": "SlidingWindowSpec", "extra": {"sliding_window": 200}}
    model: dict[str, Layer] = {
        f"model.layers.{layer}.self_attn.attn": Heads(2) if layer == 2 else Heads(4, **window) for layer in range(3)
    }
    engine = Engine(Side(2), model, whole_of(model))
    assert {group.kv_cache_spec.block_size for group in engine.configs[0].kv_cache_groups} == {16, 32}
    run(model, Side(2), Side(1, block_size=32))


def test_pipeline_stages_may_be_uneven() -> None:
    run(llama(layers=4), Side(2, pp=2), Side(1), stages=((3, 1), ()))
    run(llama(layers=4), Side(1), Side(1, pp=3), stages=((), (1, 2, 1)))


def windows(window: int) -> dict[str, Layer]:
    extra = {"kind": "SlidingWindowSpec", "extra": {"sliding_window": window}}
    kinds: list[dict[str, Any]] = [extra, extra, {}, extra]
    return {f"model.layers.{layer}.self_attn.attn": Heads(2, **values) for layer, values in enumerate(kinds)}


@pytest.mark.parametrize("window", [24, 32, 33])
def test_windows_take_what_the_target_has_blocks_for(window: int) -> None:
    num_tokens = 100
    model = windows(window)
    decode = Engine(Side(1, block_size=32, num_blocks=60), model, whole_of(model))
    windowed = {
        number: num_tokens - window + 1
        for number, group in enumerate(decode.configs[0].kv_cache_groups)
        if hasattr(group.kv_cache_spec, "sliding_window") and group.kv_cache_spec.sliding_window
    }
    prefill = Engine(Side(2, block_size=16, num_blocks=60), model, whole_of(model))
    check_pair(prefill, decode, num_tokens, null_tokens=windowed)


def chunks(chunk: int) -> dict[str, Layer]:
    extra = {"kind": "ChunkedLocalAttentionSpec", "extra": {"attention_chunk_size": chunk}}
    return {f"model.layers.{n}.self_attn.attn": Heads(2, **(extra if n % 2 else {})) for n in range(4)}


@pytest.mark.parametrize("num_tokens", [63, 64, 65, 100])
def test_chunks_take_what_the_target_has_blocks_for(num_tokens: int) -> None:
    model = chunks(64)
    prefill, decode = (Engine(side, model, whole_of(model)) for side in (Side(2), Side(1, block_size=32)))
    chunked = {
        number: num_tokens // 64 * 64
        for number, group in enumerate(decode.configs[0].kv_cache_groups)
        if getattr(group.kv_cache_spec, "attention_chunk_size", None)
    }
    assert chunked
    check_pair(prefill, decode, num_tokens, null_tokens=chunked)


def test_groups_of_different_kinds_lie_over_one_another() -> None:
    model = chunks(64)
    engine = Engine(Side(1), model, whole_of(model))
    addresses = {name: tensor.data_ptr() for name, tensor in engine.tensors[0].items()}
    assert len(engine.configs[0].kv_cache_groups) == 2
    assert len(set(addresses.values())) == len(addresses) // 2
    run(model, Side(1), Side(2, block_size=32))


@pytest.mark.parametrize("model", [windows(24), chunks(64)], ids=["windows", "chunks"])
def test_without_the_hybrid_manager_windows_and_chunks_keep_everything(model: dict[str, Layer]) -> None:
    alone = Side(2, hybrid_manager=False)
    (group,) = Engine(alone, model, whole_of(model)).configs[0].kv_cache_groups
    assert {type(spec) for spec in iter_layer_specs(group.kv_cache_spec)} == {FullAttentionSpec}
    run(model, alone, Side(1, block_size=32, hybrid_manager=False))
    run(model, alone, Side(1, block_size=32))
    run(model, Side(1, block_size=32), alone)


FULL_KINDS = {"RSWASpec": {"rswa_window": 32}, "SinkFullAttentionSpec": {"sink_len": 16}}


@pytest.mark.parametrize("kind", list(FULL_KINDS))
def test_other_kinds_of_full_attention(kind: str) -> None:
    run(llama(kind=kind, extra=FULL_KINDS[kind]), Side(2), Side(1, block_size=32))
