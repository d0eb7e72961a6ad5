"""Latents, indexer keys and compressed caches moved between live tensors of vLLM's layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.integrations.vllm.layers import Latent, Layer, Ring, Side
from tests.integrations.vllm.pairs import run

DCP = [
    (Side(2), Side(4, block_size=32)),
    (Side(2, dcp=2), Side(1)),
    (Side(4, dcp=2, interleave=8), Side(2, dcp=2, block_size=32)),
]


def mla(layers: int = 2, **values: Any) -> dict[str, Layer]:
    return {f"model.layers.{layer}.self_attn.attn": Latent(48, **values) for layer in range(layers)}


@pytest.mark.parametrize(("prefill", "decode"), DCP, ids=["tp alone", "dcp to none", "dcp to dcp"])
def test_latents_with_and_without_dcp(prefill: Side, decode: Side) -> None:
    run(mla(), prefill, decode)


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


def deepseek_v4() -> dict[str, Layer]:
    model: dict[str, Layer] = {}
    packed: dict[str, Any] = {"row": 584, "values": 576, "cache_dtype": "fp8_ds_mla", "alignment": 576}
    for layer, rate in enumerate((4, 128)):
        name = f"model.layers.{layer}.attn"
        model[f"{name}.swa_cache"] = Latent(
            512, torch.uint8, window=128, block_size=64, backend="DEEPSEEK_SPARSE_SWA", **packed
        )
        model[f"{name}.mla_attn"] = Latent(512, torch.uint8, rate, backend="FLASHMLA_SPARSE_DSV4", **packed)
        width, block = (2048, 4) if rate == 4 else (1024, 8)
        model[f"{name}.compressor.state_cache"] = Latent(
            width, torch.float32, window=2 * rate if rate == 4 else rate, block_size=block,
            backend="CompressorBackend", alignment=576,
        )  # fmt: skip
    model["model.layers.0.attn.indexer.k_cache"] = Latent(
        132, torch.uint8, 4, values=128, backend="DEEPSEEK_V4_INDEXER", alignment=576
    )
    return model


def test_deepseek_v4_packs_its_caches_block_by_block() -> None:
    model = deepseek_v4()
    sides = [Side(tp, block_size=256, layout="BLHNC", num_blocks=400) for tp in (2, 1)]
    run(model, *sides, num_tokens=600)


def test_the_open_groups_ring_is_copied_whole() -> None:
    model = mla() | {"model.layers.0.self_attn.indexer.tail": Ring(2, 32)}
    run(model, Side(2, layout="BLHNC"), Side(1, layout="BLNHC", block_size=32))
