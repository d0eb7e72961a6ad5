from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as vllm_specs
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.attention.backends.gdn_attn import GDNAttentionBackend
from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend

from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.interior import choose_interior
from kvweave.integrations.vllm.layer_facts import LayerFacts, conv_order, layer_specs, read_facts

INDEXER = vllm_specs.MLAAttentionSpec(block_size=256, num_kv_heads=1, head_size=132, dtype=torch.uint8)
ATTENTION = vllm_specs.FullAttentionSpec(block_size=64, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
NAME = "model.layers.0.self_attn"


def facts_of(monkeypatch: pytest.MonkeyPatch, spec: Any, **layer: Any) -> LayerFacts:
    built = SimpleNamespace(**{name: value for name, value in layer.items() if name != "backend"})
    built.get_attn_backend = lambda: layer["backend"]
    monkeypatch.setattr("vllm.config.get_layers_from_vllm_config", lambda *_: {NAME: built})
    group = SimpleNamespace(layer_names=[NAME], kv_cache_spec=spec)
    return read_facts(None, SimpleNamespace(kv_cache_groups=[group]))[NAME]


def test_the_backend_and_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert facts_of(monkeypatch, ATTENTION, backend=CPUAttentionBackend, isa="vec") == LayerFacts("CPU_ATTN", "vec")


def test_the_pages_of_a_backend_that_keeps_scales_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts_of(monkeypatch, INDEXER, backend=DeepseekV32IndexerBackend)
    assert (found.backend, found.page_tokens) == ("DEEPSEEK_V32_INDEXER", 64)


@pytest.mark.parametrize("page_tokens", [1, 64])
def test_rocm_keeps_indexer_keys_in_tiles_of_its_own(monkeypatch: pytest.MonkeyPatch, page_tokens: int) -> None:
    monkeypatch.setattr("vllm.platforms.current_platform.is_rocm", lambda: True)
    monkeypatch.setattr("vllm.v1.worker.utils.select_common_block_size", lambda *_: page_tokens)
    found = facts_of(monkeypatch, INDEXER, backend=DeepseekV32IndexerBackend)
    assert found.shuffled == (page_tokens > 1)
    if found.shuffled:
        with pytest.raises(ConfigurationError, match="DEEPSEEK_V32_INDEXER with shuffled values"):
            choose_interior(NAME, INDEXER, found)


def test_the_cpu_keeps_the_delta_nets_state_key_major(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = vllm_specs.MambaSpec(block_size=64, shapes=((3, 64), (2, 8, 16)), dtypes=(torch.float32,) * 2)
    assert facts_of(monkeypatch, spec, backend=GDNAttentionBackend).key_major
    monkeypatch.setattr("vllm.platforms.current_platform.is_cpu", lambda: False)
    assert not facts_of(monkeypatch, spec, backend=GDNAttentionBackend).key_major


def test_a_layer_that_reads_anothers_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts_of(monkeypatch, ATTENTION, backend=CPUAttentionBackend, kv_sharing_target_layer_name="other")
    assert found.shares_with == "other"


@pytest.mark.parametrize(
    ("layer", "attends_all"),
    [
        ({"sliding_window": None}, True),
        ({"sliding_window": 128}, False),
        ({"sliding_window": None, "attention_chunk_size": 64}, False),
        ({"window_size": 128}, False),
    ],
    ids=["full", "window", "chunk", "a cache that says it otherwise"],
)
def test_what_a_layer_attends_to_is_its_own(
    monkeypatch: pytest.MonkeyPatch, layer: dict[str, int | None], attends_all: bool
) -> None:
    assert facts_of(monkeypatch, ATTENTION, backend=CPUAttentionBackend, **layer).attends_all is attends_all


def test_layers_of_a_uniform_group_keep_their_own_specs() -> None:
    uniform = vllm_specs.UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs={"a": ATTENTION, "b": INDEXER})
    groups = [SimpleNamespace(layer_names=["a", "b", "shares with a"], kv_cache_spec=uniform)]
    assert layer_specs(SimpleNamespace(kv_cache_groups=groups)) == {"a": ATTENTION, "b": INDEXER}


def test_convolutions_are_tap_major_unless_the_process_says_otherwise() -> None:
    assert conv_order() == "SD"
