"""What only vLLM's layer objects say of a layer: its attention backend, and how that fills a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvweave.integrations.vllm.version import (
    DEEPSEEK_V4_BACKENDS,
    INDEXER_BACKENDS,
    KEY_MAJOR_BACKENDS,
    ROCM_TILED_INDEXERS,
)


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Of one layer: the backend's name, the CPU's instruction set, the tokens of the backend's own pages.

    ``page_tokens`` is known where a page's interior depends on it (values, then scales). ``shares_with`` names the
    layer whose cache this one reads (vLLM's ``kv_sharing_target_layer_name``): it keeps nothing of its own.
    ``shuffled`` says that values of a page lie in an order of the kernel's own, ``key_major`` that a recurrent state
    lies as (head, key, value) whatever its shape says. ``attends_all`` says that the layer has neither window nor
    chunk, also where its spec names one: without the hybrid manager vLLM merges the layers' specs
    (``FullAttentionSpec.merge``).
    """

    backend: str
    isa: str | None = None
    page_tokens: int | None = None
    shares_with: str | None = None
    shuffled: bool = False
    key_major: bool = False
    attends_all: bool = False


def read_facts(vllm_config: Any, kv_cache_config: Any) -> Mapping[str, LayerFacts]:
    """The facts of every layer that a worker has built."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    specs = layer_specs(kv_cache_config)
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    return {name: _facts(layer, specs.get(name)) for name, layer in layers.items()}


def layer_specs(kv_cache_config: Any) -> dict[str, Any]:
    """Each layer's own vLLM spec, uniform groups taken layer by layer."""
    found: dict[str, Any] = {}
    for group in kv_cache_config.kv_cache_groups:
        inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
        for name in group.layer_names:
            if inner is None:
                found[name] = group.kv_cache_spec
            elif name in inner:
                found[name] = inner[name]
    return found


def conv_order() -> str:
    """The order of conv states' axes in this process (vLLM's ``VLLM_SSM_CONV_STATE_LAYOUT``, tap-major unless set)."""
    from vllm.model_executor.layers.mamba.mamba_utils import get_conv_state_layout

    return str(get_conv_state_layout())


def _facts(layer: Any, spec: Any) -> LayerFacts:
    from vllm.platforms import current_platform

    backend = layer.get_attn_backend()
    name, page_tokens = str(backend.get_name()), _page_tokens(backend, spec)
    tiled = current_platform.is_rocm() and name in ROCM_TILED_INDEXERS and page_tokens != 1
    return LayerFacts(
        name,
        getattr(layer, "isa", None),
        page_tokens,
        getattr(layer, "kv_sharing_target_layer_name", None),
        tiled or bool(getattr(layer, "uses_shuffled_layout", False)),
        current_platform.is_cpu() and name in KEY_MAJOR_BACKENDS,
        _attends_all(layer),
    )


def _attends_all(layer: Any) -> bool:
    """vLLM's ``Attention`` says its window, its subclass for chunks also these; other layers' specs are their own."""
    return getattr(layer, "sliding_window", 0) is None and getattr(layer, "attention_chunk_size", None) is None


def _page_tokens(backend: Any, spec: Any) -> int | None:
    """Tokens of the blocks that the backend's kernels address (vLLM's ``select_common_block_size``)."""
    from vllm.v1.worker.utils import select_common_block_size

    if spec is None or backend.get_name() not in INDEXER_BACKENDS | DEEPSEEK_V4_BACKENDS:
        return None
    return int(select_common_block_size(spec.block_size, [backend], [spec]))
