"""Latents, indexer keys and compressed caches moved between live tensors of vLLM's layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs, iter_layer_specs

from tests.integrations.vllm.deepseek_v4 import deepseek_v4, open_group_ring, windowed_latents
from tests.integrations.vllm.engines import Engine, check_pair
from tests.integrations.vllm.layers import Latent, Layer, Ring, Side
from tests.integrations.vllm.pairs import run, whole_of

NUM_BLOCKS = 400
DCP = {
    "tp alone": (Side(2), Side(4, block_size=32)),
    "dcp to none": (Side(2, dcp=2), Side(1)),
    "none to dcp": (Side(1, block_size=32), Side(4, dcp=4, interleave=4)),
    "dcp to dcp": (Side(4, dcp=2, interleave=8), Side(2, dcp=2, block_size=32)),
    "interleave as long as a block": (Side(4, dcp=4, interleave=16), Side(4, dcp=2, interleave=16)),
    "dcp in part of tp": (Side(8, dcp=2, interleave=8), Side(4, dcp=4, interleave=8, layout="BLHNC")),
}


def mla(layers: int = 2, **values: Any) -> dict[str, Layer]:
    return {f"model.layers.{layer}.self_attn.attn": Latent(48, **values) for layer in range(layers)}


@pytest.mark.parametrize("num_tokens", [75, 16 * 13])
@pytest.mark.parametrize("shapes", list(DCP))
def test_latents_with_and_without_dcp(shapes: str, num_tokens: int) -> None:
    run(mla(), *DCP[shapes], num_tokens)


@pytest.mark.parametrize(
    "sides",
    [
        (Side(2, dcp=2, interleave=8), Side(1)),
        (Side(4, dcp=4, interleave=16), Side(2, dcp=2, interleave=8, block_size=32)),
    ],
    ids=["dcp to none", "dcp to dcp"],
)
def test_a_compressed_entry_is_on_the_rank_of_its_last_token(sides: tuple[Side, Side]) -> None:
    run(mla(rate=4, backend="FLASHMLA_SPARSE"), *sides, num_tokens=190)


def test_quantised_latents_are_one_element() -> None:
    run(mla(row=656, dtype=torch.uint8, cache_dtype="fp8_ds_mla", backend="FLASHMLA_SPARSE"), Side(2), Side(1))


def test_indexer_keys_with_their_scales_behind_the_page() -> None:
    model: dict[str, Layer] = {}
    for layer in range(2):
        model[f"model.layers.{layer}.self_attn.attn"] = Latent(48)
        model[f"model.layers.{layer}.self_attn.indexer.k_cache"] = Latent(
            132, torch.uint8, values=128, backend="DEEPSEEK_V32_INDEXER"
        )
    run(model, Side(2, block_size=64), Side(1, block_size=128, layout="BLHNC"))
    run(model, Side(1, block_size=128, kernel_block=64, layout="LBHNC"), Side(2, block_size=64))


def test_indexer_pages_smaller_than_the_packed_blocks() -> None:
    keys = Latent(132, torch.uint8, values=128, page_tokens=64, backend="DEEPSEEK_V32_INDEXER")
    model = mla() | {f"model.layers.{layer}.self_attn.indexer.k_cache": keys for layer in range(2)}
    run(model, Side(2, block_size=128, layout="BLHNC"), Side(1, block_size=64, layout="BLHNC"))


V4_TOKENS = (3, 4, 127, 128, 129, 255, 256, 511, 512, 600)
"""Around multiples of both rates, of the window and of the blocks."""


@pytest.mark.parametrize("num_tokens", V4_TOKENS)
def test_deepseek_v4_packs_its_caches_block_by_block(num_tokens: int) -> None:
    run_v4((2, 1), num_tokens)


@pytest.mark.parametrize("pair", [(1, 2), (4, 2), (2, 4)], ids=str)
def test_deepseek_v4_is_replicated_over_tensor_ranks(pair: tuple[int, int]) -> None:
    run_v4(pair, 300)


@pytest.mark.parametrize("start_token", [64, 256, 300])
def test_a_prefix_of_deepseek_v4_that_is_there_already_is_left_alone(start_token: int) -> None:
    run_v4((2, 1), 450, start_token=start_token)


@pytest.mark.parametrize("layouts", [("BLHNC", "BLNHC"), ("BLNHC", "BLHNC")], ids="-".join)
def test_deepseek_v4_in_both_of_its_layouts(layouts: tuple[str, str]) -> None:
    sides = [Side(block_size=256, layout=layout, num_blocks=NUM_BLOCKS) for layout in layouts]
    run(deepseek_v4((4,)), *sides, num_tokens=300)


def test_deepseek_v4s_windows_and_open_groups_take_what_the_target_has_blocks_for() -> None:
    model, num_tokens = deepseek_v4(), 450
    sides = [Side(tp, block_size=256, layout="BLHNC", num_blocks=NUM_BLOCKS) for tp in (2, 1)]
    prefill, decode = (Engine(side, model, whole_of(model)) for side in sides)
    reach = {
        number: next(iter(iter_layer_specs(group.kv_cache_spec))).sliding_window
        for number, group in enumerate(decode.configs[0].kv_cache_groups)
    }
    assert {window for window in reach.values() if window} == {8, 128}
    null_tokens = {number: num_tokens - window + 1 for number, window in reach.items() if window}
    check_pair(prefill, decode, num_tokens, null_tokens=null_tokens)


def run_v4(pair: tuple[int, int], num_tokens: int, **options: Any) -> None:
    sides = [Side(tp, block_size=256, layout="BLHNC", num_blocks=NUM_BLOCKS) for tp in pair]
    run(deepseek_v4(), *sides, num_tokens=num_tokens, **options)


@pytest.mark.parametrize("layouts", [("LBHNC", "BLHNC"), ("BLHNC", "LBHNC")], ids="-".join)
def test_deepseek_v4s_pages_are_those_of_vllms_writer(layouts: tuple[str, str]) -> None:
    latents = windowed_latents()
    model: dict[str, Layer] = {f"model.layers.{layer}.attn.swa_cache": latents for layer in range(2)}
    run(model, *(Side(layout=layout) for layout in layouts), num_tokens=70, start_token=70 - latents.last)


def test_deepseek_v4_mixes_kinds_inside_uniform_groups() -> None:
    model = deepseek_v4()
    engine = Engine(Side(block_size=256, layout="BLHNC", num_blocks=NUM_BLOCKS), model, whole_of(model))
    mixed = [
        {spec.tokens_per_state for spec in iter_layer_specs(group.kv_cache_spec)}
        for group in engine.configs[0].kv_cache_groups
        if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs)
    ]
    assert {4, 128} in mixed


@pytest.mark.parametrize("ring", [Ring(2, 32), open_group_ring()], ids=["keys and gates", "V4.1's compressor"])
def test_the_open_groups_ring_is_copied_whole(ring: Ring) -> None:
    model = mla() | {"model.layers.0.self_attn.indexer.tail": ring}
    run(model, Side(2, layout="BLHNC"), Side(1, layout="BLNHC", block_size=32))


@pytest.mark.parametrize("num_tokens", [75, 76, 77])
def test_pooled_indexer_keys_beside_their_ring(num_tokens: int) -> None:
    pooled = Latent(132, torch.uint8, 4, values=128, backend="DEEPSEEK_V32_INDEXER")
    model = mla(1) | {
        "model.layers.0.self_attn.indexer.k_cache": pooled,
        "model.layers.0.self_attn.indexer.tail": Ring(2, 32, dtype=torch.bfloat16),
    }
    run(model, Side(2, layout="BLHNC", block_size=64), Side(1, layout="BLNHC", block_size=128), num_tokens)
