from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as vllm_specs
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as MambaKind

import kvweave.core.spec as kv
from kvweave.core.array import DType, WindowReach
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.layer_facts import LayerFacts
from kvweave.integrations.vllm.specs import translate_spec
from kvweave.integrations.vllm.whole_model import WholeModel

LAYER = "model.layers.1.self_attn.attn"
ATTENTION = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
LATENT = {"block_size": 64, "num_kv_heads": 1, "head_size": 576, "dtype": torch.bfloat16}
ROWS = LayerFacts("FLASH_ATTN")


def whole(heads: int = 4, known: kv.LayerSpec | None = None, **values: Any) -> WholeModel:
    layer = CacheLayer("model.layers.1.self_attn", 1, known or kv.FullAttentionSpec(heads, 64))
    cache = ModelCache("tiny", 2, (KVCacheGroup("all", (layer,)),))
    return WholeModel("tiny", 2, cache, **values)


def translate(spec: Any, model: WholeModel, facts: LayerFacts = ROWS, tp: int = 2, layer: str = LAYER) -> Any:
    return translate_spec(layer, spec, model, facts, tp, "SD")


def test_heads_are_the_whole_models() -> None:
    assert translate(vllm_specs.FullAttentionSpec(**ATTENTION), whole(4)).num_kv_heads == 4


def test_replicated_heads_are_not_multiplied() -> None:
    spec = vllm_specs.FullAttentionSpec(**ATTENTION | {"num_kv_heads": 1})
    assert translate(spec, whole(2), tp=8).num_kv_heads == 2


def test_a_count_that_contradicts_the_configuration_is_refused_with_both() -> None:
    with pytest.raises(ConfigurationError, match=r"2 KV heads on this rank, but 2 .* over tp=2 are 1"):
        translate(vllm_specs.FullAttentionSpec(**ATTENTION), whole(2))


def test_another_head_size_than_the_configurations_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"head sizes \(32, 32\) in vLLM, 64 in the model's"):
        translate(vllm_specs.FullAttentionSpec(**ATTENTION | {"head_size": 32}), whole(4))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (vllm_specs.FullAttentionSpec(**ATTENTION), kv.FullAttentionSpec),
        (vllm_specs.SlidingWindowSpec(**ATTENTION, sliding_window=128), kv.SlidingWindowSpec),
        (vllm_specs.ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64), kv.ChunkedLocalAttentionSpec),
        (vllm_specs.FullAttentionSpec(**ATTENTION, sliding_window=128), kv.SlidingWindowSpec),
        (vllm_specs.FullAttentionSpec(**ATTENTION, attention_chunk_size=64), kv.ChunkedLocalAttentionSpec),
        (vllm_specs.RSWASpec(**ATTENTION, rswa_window=128), kv.FullAttentionSpec),
        (vllm_specs.SinkFullAttentionSpec(**ATTENTION, sink_len=16), kv.FullAttentionSpec),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_each_attention_spec_keeps_its_reach(spec: Any, kind: type) -> None:
    assert type(translate(spec, whole(4))) is kind


@pytest.mark.parametrize("reach", [{"sliding_window": 128}, {"attention_chunk_size": 64}], ids=["window", "chunk"])
def test_a_full_layer_in_a_group_of_merged_specs_stays_full(reach: dict[str, int]) -> None:
    spec = vllm_specs.FullAttentionSpec(**ATTENTION, **reach)
    assert type(translate(spec, whole(4), replace(ROWS, attends_all=True))) is kv.FullAttentionSpec


def test_a_latent_is_one_vector_of_its_size() -> None:
    found = translate(vllm_specs.MLAAttentionSpec(**LATENT), whole(known=kv.MLAAttentionSpec(576)))
    assert (found.head_size, found.tokens_per_state, found.part) == (576, 1, "latent")


def test_compression_and_window_of_a_latent() -> None:
    spec = vllm_specs.SlidingWindowMLASpec(**LATENT, sliding_window=128)
    (array,) = translate(spec, whole(), LayerFacts("DEEPSEEK_SPARSE_SWA")).arrays()
    assert array.tokens.reach == WindowReach(128)
    spec = vllm_specs.MLAAttentionSpec(**LATENT, tokens_per_state=4)
    assert translate(spec, whole(), LayerFacts("FLASHMLA_SPARSE_DSV4")).tokens_per_state == 4


def test_an_indexers_keys_are_a_part_of_their_own() -> None:
    spec = vllm_specs.MLAAttentionSpec(**LATENT | {"head_size": 132, "dtype": torch.uint8})
    assert translate(spec, whole(), LayerFacts("DEEPSEEK_V32_INDEXER")).part == "indexer"


def test_a_quantised_cache_is_named_as_vllm_names_it() -> None:
    mode = vllm_specs.get_kv_quant_mode("fp8")
    spec = vllm_specs.FullAttentionSpec(**ATTENTION | {"dtype": torch.uint8}, kv_quant_mode=mode)
    assert translate(spec, whole(4, cache_dtype="fp8")).dtype == DType("fp8_e4m3", 1)


def test_a_draft_layer_takes_the_draft_models_heads() -> None:
    spec = vllm_specs.FullAttentionSpec(**ATTENTION)
    assert translate(spec, whole(8, draft_heads=4), layer="model.layers.2.self_attn.attn").num_kv_heads == 4
    with pytest.raises(ConfigurationError, match="no draft model is configured"):
        translate(spec, whole(8), layer="mtp.layers.0.self_attn.attn")


MAMBA2 = kv.MambaSpec.mamba2(8, 16, 1, 24, 4, DType.of("bfloat16"), DType.of("float32"))


def mamba(**values: Any) -> Any:
    usual: dict[str, Any] = {"shapes": ((3, 112), (4, 16, 24)), "dtypes": (torch.bfloat16, torch.float32)}
    return vllm_specs.MambaSpec(block_size=64, **usual | {"mamba_type": MambaKind.MAMBA2} | values)


def test_a_states_groups_come_from_the_configuration_and_its_taps_from_vllm() -> None:
    found = translate(mamba(shapes=((5, 112), (4, 16, 24))), whole(known=MAMBA2))
    sizes = {state.part: [axis.size for axis in state.axes] for state in found.states}
    assert sizes == {"conv.x": [128, 5], "conv.b": [24, 5], "conv.c": [24, 5], "ssm": [8, 16, 24]}


def test_a_state_of_an_unknown_architecture_is_refused_with_what_is_missing() -> None:
    model = replace(whole(), cache=None, unknown="architecture 'NewMamba' is not known")
    with pytest.raises(ConfigurationError, match=r"heads and groups .* architecture 'NewMamba' is not known"):
        translate(mamba(), model)


REFUSED = {
    "CrossAttentionSpec": "encoder's states",
    "EncoderOnlyAttentionSpec": "keeps no cache",
    "HiddenStateCacheSpec": "hidden states for extraction",
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_moved_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} cannot be transferred: .*{REFUSED[name]}"):
        translate(getattr(vllm_specs, name)(**ATTENTION), whole())


def test_hisparse_is_refused_by_name() -> None:
    spec = vllm_specs.HiSparseHotSpec(block_size=16, page_size=64, blocks_per_request=2)
    with pytest.raises(ConfigurationError, match=r"HiSparseHotSpec cannot be transferred: .* turn HiSparse off"):
        translate(spec, whole())


def test_more_entries_than_tokens_are_refused() -> None:
    spec = vllm_specs.FullAttentionSpec(**ATTENTION, tokens_per_state=Fraction(1, 4))
    with pytest.raises(ConfigurationError, match="tokens_per_state 1/4 keeps several entries a token"):
        translate(spec, whole())


def test_replay_records_are_refused() -> None:
    shapes = ((3, 112), (4, 16, 24), (4, 8, 16), (4, 8), (1, 8, 24))
    with pytest.raises(ConfigurationError, match="5 tensors, two are known; ReplaySSM"):
        translate(mamba(shapes=shapes, dtypes=(torch.bfloat16,) * 5), whole(known=MAMBA2))


def test_a_ring_of_an_unknown_backend_is_refused() -> None:
    spec = vllm_specs.CircularBufferSpec(block_size=8, num_kv_heads=2, head_size=32, head_size_v=0, dtype=torch.float32)
    with pytest.raises(ConfigurationError, match="ring of backend QSA_STATE is not known"):
        translate(spec, whole(), LayerFacts("QSA_STATE"))


def test_short_convolutions_need_the_configurations_width() -> None:
    spec = mamba(shapes=((2, 32),), dtypes=(torch.bfloat16,), mamba_type=MambaKind.SHORT_CONV)
    assert translate(spec, whole(short_conv_channels=64)).states[0].axes[0].size == 64
    with pytest.raises(ConfigurationError, match="32 channels on this rank of tp=2, but conv_dim None"):
        translate(spec, whole())
