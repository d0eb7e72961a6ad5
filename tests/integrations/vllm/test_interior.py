from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as vllm_specs
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from kvweave.errors import ConfigurationError, LayoutError
from kvweave.integrations.vllm.interior import Page, choose_interior
from kvweave.integrations.vllm.layer_facts import LayerFacts
from kvweave.integrations.vllm.tensor_view import TensorView
from kvweave.integrations.vllm.version import (
    CELL_BACKENDS,
    DEEPSEEK_V4_BACKENDS,
    LATENT_ROW_BACKENDS,
    PLANE_BACKENDS,
    ROW_BACKENDS,
    Interior,
)

NAME = "model.layers.0.self_attn.attn"
REFUSED_BACKENDS = {
    "ROCM_ATTN", "ROCM_SEGMENTED_ATTN", "MINIMAX_M3_SPARSE", "CUTLASS_MSA", "TRITON_MSA", "FLASHMLA_SPARSE_DSV41",
    "FLASHINFER_MLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41", "NO_ATTENTION", "TORCH_SDPA", "CUSTOM",
}  # fmt: skip
ALIASES = {"ROCM_AITER_FA": "FLASH_ATTN", "ROCM_AITER_TRITON_MLA": "AITER_TRITON_MLA"}
"""Backends whose ``get_name`` says something else than vLLM's registry."""


def full(**values: Any) -> Any:
    return vllm_specs.FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, **values
    )  # fmt: skip


def test_every_backend_of_vllm_is_known_or_refused_on_purpose() -> None:
    known = ROW_BACKENDS | PLANE_BACKENDS | CELL_BACKENDS | LATENT_ROW_BACKENDS | DEEPSEEK_V4_BACKENDS | {"CPU_ATTN"}
    names = {ALIASES.get(backend.name, backend.name) for backend in AttentionBackendEnum}
    assert names - known == REFUSED_BACKENDS


@pytest.mark.parametrize(
    ("facts", "spec"),
    [
        (LayerFacts("ROCM_ATTN"), full(num_head_slots=2, state_content_bytes=256)),
        (LayerFacts("FLASH_ATTN"), full(num_head_slots=2, state_content_bytes=256)),
        (LayerFacts("FLASHINFER"), full(num_head_slots=4, state_content_bytes=36)),
        (LayerFacts("CPU_ATTN", "neon"), full()),
        (LayerFacts("FLASH_ATTN", shuffled=True), full()),
    ],
    ids=["ROCm's own order", "ROCm's shuffled planes", "NVFP4", "ARM tiles", "shuffled"],
)
def test_an_unknown_interior_is_refused_by_the_backends_name(facts: LayerFacts, spec: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{NAME}: attention backend {facts.backend} .* is not known"):
        choose_interior(NAME, spec, facts)


def test_instruction_sets_have_their_tiles() -> None:
    found = [choose_interior(NAME, full(), LayerFacts("CPU_ATTN", isa)) for isa in ("vec", "vec16", "amx")]
    assert found == [Interior.CPU_TILES, Interior.CPU_TILES, Interior.AMX_TILES]


def test_tiles_across_kernel_blocks_are_refused() -> None:
    page = Page(NAME, TensorView.of(NAME, torch.zeros(8, 2, 16, 128)), 2)
    with pytest.raises(LayoutError, match="2 kernel blocks of 16 entries in tiles of 16; choose a block size"):
        page.tiled(16, 1, 1, ())
