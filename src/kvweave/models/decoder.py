"""From what each decoder layer caches to the model's cache: names, groups, fingerprint.

A family returns a ``Decoder``; everything that is the same for all families happens here::

    layers[3] = (Module("self_attn", spec),)   ->  CacheLayer("model.layers.3.self_attn", index 3) in a group
    predictor ("model.layers.61", ...)         ->  the same name, index of the last decoder layer

A multi-token-prediction layer counts as part of the last decoder layer: vLLM runs it on the last pipeline stage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvweave.core.array import CacheArray, FullReach
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheSetting

GROUP_ORDER = ("full", "window", "chunk", "rate", "state")
"""The kinds of groups, in the order in which a model lists them."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module that caches something: its name inside its layer, and its spec."""

    suffix: str
    spec: LayerSpec


@dataclass(frozen=True, slots=True)
class Predictor:
    """A multi-token-prediction layer: its full name, and what it caches."""

    name: str
    modules: tuple[Module, ...]


@dataclass(frozen=True, slots=True)
class Decoder:
    """What every decoder layer caches (nothing, for a layer without cache), and the predictors that are on."""

    layers: tuple[tuple[Module, ...], ...]
    predictors: tuple[Predictor, ...] = ()

    def cache_layers(self) -> Iterator[CacheLayer]:
        """All caching modules in layer order."""
        for index, modules in enumerate(self.layers):
            for module in modules:
                yield CacheLayer(f"model.layers.{index}.{module.suffix}", index, module.spec)
        for predictor in self.predictors:
            for module in predictor.modules:
                yield CacheLayer(f"{predictor.name}.{module.suffix}", len(self.layers) - 1, module.spec)


BuildDecoder = Callable[[ConfigReader, CacheSetting], Decoder]


def assemble(name: str, decoder: Decoder) -> ModelCache:
    """The model's cache: layers in groups that share a block table."""
    layers = tuple(decoder.cache_layers())
    groups = tuple(
        KVCacheGroup(group, tuple(layer for layer in layers if group_name(layer.spec) == group))
        for group in _group_names(layers)
    )
    return ModelCache(name, len(decoder.layers), groups, fingerprint(len(decoder.layers), layers))


def group_name(spec: LayerSpec) -> str:
    """The group of a layer: what may share a block table with it.

    >>> group_name(SlidingWindowSpec(num_kv_heads=8, head_size=128, sliding_window=1024))
    'window.1024'
    """
    match spec:
        case FullAttentionSpec():
            return "full"
        case SlidingWindowSpec(sliding_window=window):
            return f"window.{window}"
        case ChunkedLocalAttentionSpec(attention_chunk_size=chunk):
            return f"chunk.{chunk}"
        case MLAAttentionSpec(tokens_per_state=rate) if rate > 1:
            return f"rate.{rate}"
        case MLAAttentionSpec(sliding_window=None):
            return "full"
        case MLAAttentionSpec(sliding_window=window):
            return f"window.{window}"
        case _:
            return "state"


def predictor_count(reader: ConfigReader, key: str) -> int:
    """How many multi-token-prediction layers the file has; asking a model without them for them is an error."""
    if reader.number(key) == 0:
        raise reader.error(f"{key} is 0 and mtp is true; this model has no prediction layers: leave mtp off")
    return reader.count(key, at_most=64)


def refuse_mtp(reader: ConfigReader, setting: CacheSetting) -> None:
    """Raises when multi-token prediction is asked of a family for which no such layers are known."""
    if setting.mtp:
        raise reader.error("mtp is true; no prediction layers are known for this family: leave mtp off")


def fingerprint(num_layers: int, layers: Iterable[CacheLayer]) -> str:
    """A short hash of everything that shapes the cache. Equal shapes give equal values, whatever the weights."""
    shape = [[layer.name, layer.index, [_array_shape(array) for array in layer.spec.arrays()]] for layer in layers]
    text = json.dumps([num_layers, shape], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _group_names(layers: Iterable[CacheLayer]) -> list[str]:
    names = dict.fromkeys(group_name(layer.spec) for layer in layers)
    return sorted(names, key=lambda group: GROUP_ORDER.index(group.split(".")[0]))


def _array_shape(array: CacheArray) -> list[object]:
    axes = [[axis.name, axis.size, axis.units] for axis in array.axes]
    tokens: list[object] | None = None
    if array.tokens is not None:
        reach = array.tokens.reach
        visible = 0 if isinstance(reach, FullReach) else reach.tokens
        tokens = [array.tokens.tokens_per_entry, type(reach).__name__, visible, array.tokens.dcp_sharded]
    return [array.part, axes, array.dtype.name, array.dtype.nbytes, tokens]
