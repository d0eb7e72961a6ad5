"""What proves each kind of cache that servers on a CPU can't run, end to end; and that the proof can fail.

In each of these tests vLLM's own functions group the layers and allocate the tensors of a prefill and of a decode
engine (``engines``), vLLM's own slot mapping kernels and writers put labels where a token belongs (``slots``,
``layers``), kvweave's layout and plan move bytes between the live tensors, and the whole target memory must be what
vLLM would have written there, with everything else untouched.
"""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1 import kv_cache_interface as vllm_specs

from kvweave.integrations.vllm.version import REFUSED_SPECS
from tests.integrations.vllm.engines import Engine, check_pair
from tests.integrations.vllm.layers import Heads, Layer, Side
from tests.integrations.vllm.pairs import whole_of

CASES = {
    "all six layouts": ("attention.every_layout_feeds_every_other_kind", "states.states_in_every_layout"),
    "all layers in one block row (cross-layer)": (
        "attention.every_layout_feeds_every_other_kind", "latents.deepseek_v4_in_both_of_its_layouts",
    ),
    "heads, split and replicated": ("attention.heads_land_where_vllm_reads_them",),
    "K and V of different sizes": ("attention.keys_and_values_of_different_sizes",),
    "K and V in planes, tiles, quantised rows": (
        "attention.planes_of_k_and_v_become_rows", "attention.cpu_tiles_are_those_of_vllms_kernel",
        "attention.amx_tiles_are_those_of_vllms_kernel", "attention.quantised_rows_move_as_one_piece",
    ),
    "kernel blocks smaller than logical ones": (
        "attention.kernel_blocks_smaller_than_logical_ones", "latents.indexer_keys_with_their_scales_behind_the_page",
    ),
    "block sizes that do not divide one another": ("attention.kernel_blocks_smaller_than_logical_ones",),
    "padded pages": ("attention.padded_pages", "states.states_beside_attention"),
    "pipeline stages": ("attention.pipeline_stages_may_be_uneven",),
    "sliding windows": ("attention.windows_take_what_the_target_has_blocks_for",),
    "chunked local attention": ("attention.chunks_take_what_the_target_has_blocks_for",),
    "hybrid manager off": ("attention.without_the_hybrid_manager_windows_and_chunks_keep_everything",),
    "R-SWA and sinks": ("attention.other_kinds_of_full_attention",),
    "uniform-type groups, layer by layer": (
        "attention.layers_of_one_kind_and_other_sizes_are_a_uniform_group",
        "latents.deepseek_v4_mixes_kinds_inside_uniform_groups",
    ),
    "groups whose block sizes vLLM fits to one page": (
        "attention.a_group_whose_pages_vllm_has_to_fit_takes_longer_blocks",
    ),
    "tensors shared between groups": (
        "attention.groups_of_different_kinds_lie_over_one_another",
        "states.several_states_share_the_tensors_of_one_attention_layer",
    ),
    "draft-model layers": ("attention.a_draft_models_layers_move_with_its_own_heads",),
    "MLA, quantised MLA": ("latents.latents_with_and_without_dcp", "latents.quantised_latents_are_one_element"),
    "MLA under dcp with interleave": ("latents.latents_with_and_without_dcp",),
    "replicated heads under dcp": ("attention.heads_that_are_replicated_for_context_parallelism",),
    "compressed caches under dcp": ("latents.a_compressed_entry_is_on_the_rank_of_its_last_token",),
    "indexer keys, packed rows": (
        "latents.indexer_keys_with_their_scales_behind_the_page",
        "latents.indexer_pages_smaller_than_the_packed_blocks",
    ),
    "tokens_per_state above 1, DeepSeek V4": (
        "latents.deepseek_v4_packs_its_caches_block_by_block", "latents.deepseek_v4_is_replicated_over_tensor_ranks",
        "latents.a_prefix_of_deepseek_v4_that_is_there_already_is_left_alone",
        "latents.deepseek_v4s_windows_and_open_groups_take_what_the_target_has_blocks_for",
        "latents.deepseek_v4s_pages_are_those_of_vllms_writer",
    ),
    "circular buffers": (
        "latents.the_open_groups_ring_is_copied_whole", "latents.pooled_indexer_keys_beside_their_ring",
    ),
    "Mamba1, Mamba2, gated delta net, KDA": ("states.states_beside_attention", "states.delta_nets_beside_latents"),
    "both conv orders, mixed": ("states.states_beside_attention",),
    "short convolutions": ("states.a_short_convolution_is_cut_by_channel",),
    "replicated state pages": ("states.a_replicated_state_is_the_same_on_every_rank",),
    "states behind nulls": ("states.a_state_after_several_blocks_stands_behind_nulls",),
    "key-major states": ("states.a_cpu_engines_key_major_state_feeds_a_value_major_one",),
    "a layer that reads another's cache": ("layout.a_layer_that_reads_anothers_cache_is_left_out",),
}  # fmt: skip
"""Each case and the tests (``test_<file>.test_<name>`` without the two prefixes) that prove it."""

SPECS = {
    "FullAttentionSpec": "heads, split and replicated",
    "RSWASpec": "R-SWA and sinks",
    "SinkFullAttentionSpec": "R-SWA and sinks",
    "MLAAttentionSpec": "MLA, quantised MLA",
    "SlidingWindowSpec": "sliding windows",
    "SlidingWindowMLASpec": "tokens_per_state above 1, DeepSeek V4",
    "ChunkedLocalAttentionSpec": "chunked local attention",
    "CircularBufferSpec": "circular buffers",
    "MambaSpec": "Mamba1, Mamba2, gated delta net, KDA",
    "UniformTypeKVCacheSpecs": "uniform-type groups, layer by layer",
}
"""vLLM's specs that are moved, and the case that shows it; ``version.REFUSED_SPECS`` are all others."""

ABSTRACT = {"KVCacheSpec", "AttentionSpec"}


@pytest.mark.parametrize("case", list(CASES))
def test_the_tests_of_a_case_are_there(case: str) -> None:
    for name in CASES[case]:
        file, _, test = name.partition(".")
        tree = ast.parse((Path(__file__).parent / f"test_{file}.py").read_text(encoding="utf-8"))
        assert f"test_{test}" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_spec_of_vllm_is_moved_or_refused() -> None:
    assert set(SPECS.values()) <= set(CASES)
    found = {kind.__name__ for kind in _below(vllm_specs.KVCacheSpec)} - ABSTRACT
    assert found == set(SPECS) | set(REFUSED_SPECS)


def _below(kind: type) -> Iterator[type]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _below(inner)


MODEL: dict[str, Layer] = {f"model.layers.{layer}.self_attn.attn": Heads(4) for layer in range(2)}


def pair() -> list[Engine]:
    return [Engine(side, MODEL, whole_of(MODEL)) for side in (Side(2), Side(1, block_size=32))]


def test_a_swapped_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    prefill, decode = pair()
    tables = prefill.tables

    def swapped(block_ids: list[Any], num_tokens: int) -> Any:
        return {name: table[[1, 0, *range(2, len(table))]] for name, table in tables(block_ids, num_tokens).items()}

    monkeypatch.setattr(prefill, "tables", swapped)
    with pytest.raises(AssertionError, match=r"rank 0: \d+ bytes differ from what vLLM would have written"):
        check_pair(prefill, decode, 75)


def test_one_byte_too_many_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    move = ctypes.memmove
    monkeypatch.setattr(ctypes, "memmove", lambda written, read, nbytes: move(written, read, nbytes + 1))
    with pytest.raises(AssertionError, match=r"rank 0: \d+ bytes differ from what vLLM would have written"):
        check_pair(*pair(), 75)
