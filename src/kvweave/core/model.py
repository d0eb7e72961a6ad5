"""A whole model's cache: its layers, and which of them share a block table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvweave.core.spec import LayerSpec, UniformTypeKVCacheSpecs
from kvweave.core.whole import require_whole
from kvweave.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """A module that caches something: its name, the decoder layer it belongs to (for pipeline stages), its spec."""

    name: str
    index: int
    spec: LayerSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers that share one block table per request."""

    name: str
    layers: tuple[CacheLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigurationError(f"group {self.name}: it has no layers; leave the group out")


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Everything that one model caches. ``fingerprint`` tells a fine-tune of the same shape from its parent."""

    name: str
    num_layers: int
    groups: tuple[KVCacheGroup, ...]
    fingerprint: str = ""

    def __post_init__(self) -> None:
        require_whole(f"model {self.name}", 1, num_layers=self.num_layers)
        names = [group.name for group in self.groups]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ConfigurationError(f"model {self.name}: groups {sorted(repeated)} repeat; name each block table once")
        seen: set[tuple[str, str]] = set()
        for layer in self.layers():
            require_whole(f"layer {layer.name}", None, index=layer.index)
            if not 0 <= layer.index < self.num_layers:
                raise ConfigurationError(
                    f"layer {layer.name}: index {layer.index} is outside the model's {self.num_layers} layers"
                )
            for array in layer.spec.arrays():
                if (layer.name, array.part) in seen:
                    raise ConfigurationError(f"layer {layer.name}: part {array.part} appears twice; name each once")
                seen.add((layer.name, array.part))

    def layers(self) -> Iterator[CacheLayer]:
        """All layers that cache something, group by group."""
        for group in self.groups:
            yield from group.layers

    def bytes_per_token(self) -> float:
        """Bytes that one more token adds over the whole model, each array counted once (windows never full)."""
        return sum(
            array.entry_bytes / array.tokens.tokens_per_entry
            for layer in self.layers()
            for array in layer.spec.arrays()
            if array.tokens is not None
        )

    def bytes_per_request(self) -> int:
        """Bytes of all per-request states over the whole model, each array counted once."""
        return sum(
            array.entry_bytes for layer in self.layers() for array in layer.spec.arrays() if array.tokens is None
        )


def get_representative_spec_type(group: KVCacheGroup | UniformTypeKVCacheSpecs | LayerSpec) -> type[LayerSpec]:
    """The one type inside a group or spec, for those who want vLLM's answer; kvweave itself never asks.

    Raises ``ConfigurationError`` on a group that mixes types: no single answer would be right there.
    """
    match group:
        case KVCacheGroup():
            types = {type(layer.spec) for layer in group.layers}
        case UniformTypeKVCacheSpecs():
            types = {type(spec) for spec in group.kv_cache_specs.values()}
        case _:
            types = {type(group)}
    if len(types) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in types)) or "no layers"
        raise ConfigurationError(
            f"group mixes {names}: there is no representative type; take every layer by its own spec"
        )
    return types.pop()
