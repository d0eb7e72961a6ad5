"""Which bridge joins a layer's spec to its place in a transformers cache, and capture and restore over all of them.

A bridge knows one kind of cache: ``read`` gives the logical arrays of a transformers cache layer, ``write`` fills a
fresh one from them. The kind is decided once, from the layer's spec; sizes come from the spec too, so a family of
models needs no code of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from kvweave.core.array import ChunkReach, FullReach, Reach, WindowReach
from kvweave.core.model import CacheLayer, ModelCache
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.engines.hf.attention import AttentionBridge, IndexerBridge, LatentBridge, SharedKeyValueBridge
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.engines.hf.compressed import CompressedBridge, OpenGroupBridge
from kvweave.engines.hf.state import StateBridge
from kvweave.errors import LocalProtocolError


class Bridge(Protocol):
    """One kind of cache: from a transformers cache layer to logical arrays and back."""

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """The layer's parts, each a copy."""
        ...

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh transformers layer as if it had computed the captured tokens."""
        ...


def bridge_for(layer: CacheLayer, config: Any) -> Bridge:
    """The bridge of that layer; ``config`` is the text model's transformers config."""
    name, owners = layer.name, layer.name.split(".")
    match layer.spec:
        case FullAttentionSpec() | SlidingWindowSpec() | ChunkedLocalAttentionSpec():
            return AttentionBridge(name, reach_of(layer.spec))
        case MLAAttentionSpec(part="indexer"):
            return IndexerBridge(name, layer.spec.part, reach_of(layer.spec))
        case MLAAttentionSpec(sliding_window=int()):
            return SharedKeyValueBridge(name, reach_of(layer.spec))
        case MLAAttentionSpec(tokens_per_state=1):
            return LatentBridge(name, reach_of(layer.spec), config.kv_lora_rank)
        case MLAAttentionSpec():
            return CompressedBridge(name, owners[-1], layer.spec)
        case CircularBufferSpec():
            return OpenGroupBridge(name, owners[-2], layer.spec)
        case MambaSpec():
            return StateBridge(name, layer.spec)
        case _:
            raise LocalProtocolError(
                f"{name}: {type(layer.spec).__name__} is stated by an engine of its own; "
                "give the model's specs as kvweave.models reads them"
            )


def reach_of(spec: LayerSpec) -> Reach:
    """Which tokens the spec's arrays still need."""
    match spec:
        case SlidingWindowSpec(sliding_window=int(window)) | MLAAttentionSpec(sliding_window=int(window)):
            return WindowReach(window)
        case ChunkedLocalAttentionSpec(attention_chunk_size=chunk):
            return ChunkReach(chunk)
    return FullReach()


def capture(cache: Any, model: ModelCache, config: Any, num_tokens: int) -> CapturedCache:
    """Every logical array of a transformers cache that has seen ``num_tokens`` tokens."""
    arrays = {
        (layer.name, part): array
        for layer in model.layers()
        for part, array in bridge_for(layer, config).read(cache.layers[layer.index])
    }
    return CapturedCache(num_tokens, arrays)


def restore(cache: Any, model: ModelCache, config: Any, captured: CapturedCache) -> None:
    """Fills a fresh transformers cache so that the model can compute the token behind the captured ones.

    Raises ``LocalProtocolError`` when an array or needed entries of it are missing.
    """
    for layer in model.layers():
        bridge_for(layer, config).write(cache.layers[layer.index], captured)
