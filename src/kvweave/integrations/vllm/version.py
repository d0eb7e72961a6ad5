"""Which vLLM this connector knows, and everything that depends on it.

vLLM's cache interface changes between releases. Read for this table: ``v1/kv_cache_interface.py`` (specs, the logical
shape ``[block, head, state, content]`` of every layer's tensor), ``customize_spec`` and ``do_kv_cache_update`` of every
attention backend (what lies inside a page), ``MambaBase.bind_kv_cache`` (what lies inside a state's page).
"""

from __future__ import annotations

import re
from enum import StrEnum

from kvweave.errors import ConfigurationError

KNOWN_VERSIONS = ("0.32",)
"""Releases whose cache interface the tables below were read from, by major and minor number."""

TESTED_VERSION = "0.32.0"
"""The release that the tests run against."""


class Interior(StrEnum):
    """How one page of a layer's tensor ``[block, head, state, content]`` is filled.

    ``rows``         one row per head and token: K, then V (of a latent: the one vector)
    ``planes``       head slot 0 is K, slot 1 is V; a row holds all heads of one token
    ``cpu_tiles``    per head a tile of K, dim-major (token innermost), then a tile of V, token-major
    ``amx_tiles``    per head a tile of K, [token / 16][dim / 2][16 tokens][2 dims], then a tile of V,
                     [dim / 16][token / 2][16 dims][2 tokens]
    ``cells``        one opaque run of bytes per head and token
    ``value_scale``  all values of the page, then all scales of the page
    """

    ROWS = "rows"
    PLANES = "planes"
    CPU_TILES = "cpu_tiles"
    AMX_TILES = "amx_tiles"
    CELLS = "cells"
    VALUE_SCALE = "value_scale"


REFUSED_SPECS = {
    "CrossAttentionSpec": "it caches the encoder's states of the request, which have no token positions of the prompt",
    "EncoderOnlyAttentionSpec": "encoder-only attention keeps no cache between steps",
    "HiddenStateCacheSpec": "it keeps hidden states for extraction, not a cache that decoding reads",
    "HiSparseHotSpec": "HiSparse keeps a replica on the device that the engine rebuilds itself; turn HiSparse off",
    "HiSparseResidentSpec": "HiSparse keeps a replica on the device that the engine rebuilds itself; turn HiSparse off",
}
"""vLLM's specs that cannot be moved, with the reason. Their subclasses are refused with them."""

ROW_BACKENDS = frozenset(
    {
        "FLASH_ATTN", "FLASH_ATTN_DIFFKV", "FLASHINFER", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN",
        "TRITON_FLASHINFER", "FLEX_ATTENTION", "HPC_ATTN", "ROCM_AITER_UNIFIED_ATTN",
    }
)  # fmt: skip
"""Backends that split ``kv_cache.transpose(1, 2)`` at the head size: K and V side by side in each row."""

PLANE_BACKENDS = frozenset({"B12X"})
"""Backends whose two head slots are K and V (``kv_cache.unbind(1)``) with all heads of a token in one row."""

CELL_BACKENDS = frozenset({"TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT", "ULTRAQUANT"})
"""Backends that may quantise a head's row into one run of bytes, scales inside."""

LATENT_ROW_BACKENDS = frozenset(
    {
        "CPU_MLA", "AMX_MLA", "FLASHMLA", "FLASHMLA_SPARSE", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE",
        "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90", "FLASHINFER_MLA_SPARSE_SM120",
        "CUTLASS_MLA", "TRITON_MLA", "TOKENSPEED_MLA", "ROCM_AITER_MLA", "AITER_TRITON_MLA", "ROCM_AITER_MLA_SPARSE",
        "XPU_MLA_SPARSE", "CompressorBackend",
    }
)  # fmt: skip
"""Backends of latents with one row per token; also those of the compressor's partial states (DeepSeek V4)."""

INDEXER_BACKENDS = frozenset({"DEEPSEEK_V32_INDEXER", "DEEPSEEK_V4_INDEXER", "CPU_V4_INDEXER"})
"""Sparse-attention indexers: a page holds the quantised keys of all its tokens, then their scales
(``rocm_aiter_mla_sparse.py``, ``fused_compress_quant_cache.py``)."""

INDEXER_VALUES = {132: 128, 68: 64}
"""Bytes of one indexer entry, and how many of them are the key: 128 FP8 or 128 MXFP4 values."""

ROCM_TILED_INDEXERS = frozenset({"DEEPSEEK_V32_INDEXER"})
"""Indexers whose values ROCm keeps in tiles of 16 tokens by 16 bytes, in pages of more than one token
(``indexer_k_quant_and_cache_triton``); those of DeepSeek V4 it keeps as everywhere."""

DEEPSEEK_V4_BACKENDS = frozenset(
    {
        "DEEPSEEK_SPARSE_SWA", "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4", "ROCM_FLASHMLA_SPARSE_DSV4",
        "CPU_V4_MLA_SPARSE", "XPU_V4_MLA_SPARSE",
    }
)  # fmt: skip
"""DeepSeek V4's windowed and compressed latents: rows, or with ``fp8_ds_mla`` values, then scales."""

DEEPSEEK_V4_VALUES = {584: 576}
"""Bytes of one ``fp8_ds_mla`` entry of DeepSeek V4: 448 FP8 and 64 bfloat16 values; 8 bytes of scales lie behind the
values of the page (``deepseek_v4/common/ops/cache_utils.py``)."""

RING_BACKENDS = frozenset({"CompressorBackend", "KPOOL_TAIL"})
"""Backends of ``CircularBufferSpec`` whose ring is the same on every tensor rank."""

CPU_TILES = {"vec": Interior.CPU_TILES, "vec16": Interior.CPU_TILES, "amx": Interior.AMX_TILES}
"""CPU attention's instruction sets, and the tiles that ``cpu_attn_reshape_and_cache`` was seen to write with them."""

KEY_MAJOR_BACKENDS = frozenset({"GDN_ATTN"})
"""Recurrent layers whose CPU kernel keeps the state as (head, key, value), though its shape says (head, value, key):
``ops/cpu/gdn_attention.py`` views it so."""

DRAFT_PREFIXES = ("mtp", "draft_model", "eagle")
"""First word of the names of draft layers that number their decoder layers from zero again."""

NUMBERED_BEHIND = re.compile(r"^[^.]+\.(\d+)\.mixer$")
"""Names of Falcon-H1's Mamba mixers: ``model.{layers + i}.mixer`` belongs to decoder layer i (``falcon_h1.py``)."""


def require_known_version(version: str | None = None) -> str:
    """The installed vLLM's version (or ``version``), if this connector knows it.

    Raises ``ConfigurationError`` that names the version and those that are known.
    """
    if version is None:
        import vllm

        version = str(vllm.__version__)
    if ".".join(version.split(".")[:2]) not in KNOWN_VERSIONS:
        raise ConfigurationError(
            f"vllm: version {version} is not known to this connector, which knows {', '.join(KNOWN_VERSIONS)}; "
            f"install vllm {TESTED_VERSION}, or a kvweave that knows {version}"
        )
    return version
