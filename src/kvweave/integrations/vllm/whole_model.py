"""What the whole model caches, where a rank's own specs can't tell: heads, Mamba's groups, key and value heads.

A rank of vLLM knows its local head counts only, and local x tp is not the model's number when heads or groups are
replicated. The numbers come from the model's configuration, by way of ``kvweave.models``, and are found by the decoder
layer's index and the kind of cache, since vLLM's layer names differ. An attention layer of an architecture that
``kvweave.models`` does not know takes the count that vLLM itself reads from the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvweave.core.model import ModelCache
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.version import DRAFT_PREFIXES, NUMBERED_BEHIND
from kvweave.models import from_config

HeadSpec = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec


@dataclass(frozen=True)
class WholeModel:
    """A model's configuration, as far as its caches go.

    ``cache`` is None for an architecture that ``kvweave.models`` does not know, for the reason ``unknown``;
    ``layer_heads`` is then what vLLM reads from the configuration for each decoder layer. ``draft_heads`` is the draft
    model's number of KV heads, ``short_conv_channels`` the width of short convolutions (LFM2), ``cache_dtype`` vLLM's
    ``--kv-cache-dtype``.
    """

    name: str
    num_layers: int
    cache: ModelCache | None
    unknown: str = ""
    layer_heads: tuple[int, ...] = ()
    draft_heads: int | None = None
    short_conv_channels: int | None = None
    cache_dtype: str = "auto"

    def is_draft(self, layer: str) -> bool:
        """Whether a layer belongs to the draft model: numbered behind the model's own layers, or named apart."""
        return layer.split(".", maxsplit=1)[0] in DRAFT_PREFIXES or self._number(layer) >= self.num_layers

    def decoder_index(self, layer: str) -> int:
        """The decoder layer of a layer; draft layers belong to the last one, whose stage runs them."""
        return self.num_layers - 1 if self.is_draft(layer) else self._number(layer)

    def attention(self, layer: str) -> HeadSpec | None:
        """The layer's attention, or None where ``kvweave.models`` does not know the model or the layer is a draft."""
        found = [spec for spec in self._at(layer) if isinstance(spec, HeadSpec)]
        return found[0] if len(found) == 1 else None

    def latent(self, layer: str) -> MLAAttentionSpec | None:
        """The layer's plain latent, or None."""
        found = [spec for spec in self._at(layer) if isinstance(spec, MLAAttentionSpec) and spec.part == "latent"]
        return found[0] if len(found) == 1 else None

    def state(self, layer: str) -> MambaSpec:
        """The layer's recurrent state; raises ``ConfigurationError`` where the configuration can't tell."""
        found = [spec for spec in self._at(layer) if isinstance(spec, MambaSpec)]
        if len(found) != 1:
            where = "draft layers are not in it" if self.is_draft(layer) else self.unknown or "it has none there"
            raise ConfigurationError(
                f"{layer}: its recurrent state is cut by heads and groups that the model's configuration must tell, "
                f"but for {self.name} it can't be told: {where}"
            )
        return found[0]

    def heads(self, layer: str) -> int:
        """KV heads of an attention layer over the whole model."""
        known = self.attention(layer)
        if known is not None:
            return known.num_kv_heads
        if self.is_draft(layer):
            if self.draft_heads is None:
                raise ConfigurationError(f"{layer}: a draft layer, but no draft model is configured; configure it")
            return self.draft_heads
        if self._number(layer) < len(self.layer_heads):
            return self.layer_heads[self._number(layer)]
        raise ConfigurationError(f"{layer}: KV heads of the whole model are not known: {self.unknown}")

    def _at(self, layer: str) -> list[LayerSpec]:
        if self.cache is None or self.is_draft(layer):
            return []
        number = self._number(layer)
        return [held.spec for held in self.cache.layers() if held.index == number]

    def _number(self, layer: str) -> int:
        number = layer_number(layer)
        return number - self.num_layers if NUMBERED_BEHIND.match(layer) and number >= self.num_layers else number


def layer_number(layer: str) -> int:
    """The decoder layer's number in a layer's name; raises ``ConfigurationError`` for a name without one.

    >>> layer_number("language_model.model.layers.3.self_attn.attn")
    3
    """
    for word in layer.split("."):
        if word.isdigit():
            return int(word)
    raise ConfigurationError(f"{layer}: no layer number in this name; such a layer cannot be matched with a peer's")


def read_model(vllm_config: Any) -> WholeModel:
    """The whole model of a ``VllmConfig``."""
    model = vllm_config.model_config
    architecture = model.model_arch_config
    num_layers = int(architecture.total_num_hidden_layers)
    cache, unknown = _known_cache(model)
    draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
    channels = getattr(model.hf_text_config, "conv_dim", None)
    return WholeModel(
        str(model.model), num_layers, cache, unknown,
        tuple(int(architecture[layer].total_num_kv_heads) for layer in range(num_layers)),
        None if draft is None else int(draft.get_total_num_kv_heads()),
        channels if isinstance(channels, int) else None,
        str(vllm_config.cache_config.cache_dtype),
    )  # fmt: skip


def _known_cache(model: Any) -> tuple[ModelCache | None, str]:
    """What ``kvweave.models`` says of the configuration, or of its text part; else the first reason why not."""
    reasons = []
    for config in (model.hf_config, model.hf_text_config):
        try:
            return from_config(_values(config, model), str(model.model)), ""
        except ConfigurationError as unknown:
            reasons.append(str(unknown))
    return None, reasons[0]


def _values(config: Any, model: Any) -> Mapping[str, object]:
    values: dict[str, object] = {
        key: str(value).removeprefix("torch.") if key in ("dtype", "torch_dtype") and value is not None else value
        for key, value in config.to_dict().items()
    }
    return values if values.get("architectures") else values | {"architectures": list(model.architectures)}
