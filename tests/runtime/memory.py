"""Real memory of small engines, filled with a request's whole-model contents and checked against them.

Where an element lies comes from the images of ``kvweave.testing``, which share no code with the layouts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from kvweave.core.layout import EngineLayout, Region
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MLAAttentionSpec
from kvweave.testing.requests import images_of

Tables = Mapping[str, Sequence[int]]

NUM_TOKENS = 40


def two_layers(name: str, spec: LayerSpec) -> ModelCache:
    layers = tuple(CacheLayer(f"model.layers.{i}.self_attn", i, spec) for i in range(2))
    return ModelCache(name, 2, (KVCacheGroup("full", layers),))


ATTENTION = two_layers("attention", FullAttentionSpec(4, 8))
LATENT = two_layers("latent", MLAAttentionSpec(24))


def contents(model: ModelCache, seed: int, num_tokens: int = NUM_TOKENS) -> dict[tuple[str, str], np.ndarray]:
    """The bytes of a request over the whole model: per layer and part (entry, *axes, byte of the element)."""
    found = {}
    for layer in model.layers():
        for array in layer.spec.arrays():
            random = np.random.default_rng([seed, zlib.crc32(f"{layer.name} {array.part}".encode())])
            shape = (num_tokens, *(axis.size for axis in array.axes), array.dtype.nbytes)
            found[layer.name, array.part] = random.integers(1, 256, shape, dtype=np.uint8)
    return found


class EngineMemory:
    """An engine's ranks with memory of their own; ``layout`` has the real addresses."""

    def __init__(self, layout: EngineLayout) -> None:
        self._images = images_of(layout)
        self.memory = [[np.zeros(region.nbytes, np.uint8) for region in rank.regions] for rank in layout.ranks]
        for rank, arrays in zip(layout.ranks, self.memory, strict=True):
            layout = layout.relocated(rank.coordinates, [Region(array.ctypes.data, array.nbytes) for array in arrays])
        self.layout = layout

    def write(self, whole: Mapping[tuple[str, str], np.ndarray], tables: Tables) -> None:
        """Puts a request's tokens into its blocks."""
        for memory, where, values in self._pieces(whole, tables):
            memory[where] = values

    def wrong_bytes(self, whole: Mapping[tuple[str, str], np.ndarray], tables: Tables) -> int:
        """How many bytes of a request's blocks are not its own."""
        return sum(
            int(np.count_nonzero(memory[where] != values)) for memory, where, values in self._pieces(whole, tables)
        )

    def _pieces(self, whole: Mapping[tuple[str, str], np.ndarray], tables: Tables):
        for image, memory, rank in zip(self._images, self.memory, self.layout.ranks, strict=True):
            regions = {(place.layer, shard.array.part): place.region for shard in rank.shards for place in shard.places}
            for name, held in image.arrays.items():
                entries = held.entries(len(whole[name]))
                places = np.arange(len(entries))
                blocks = np.asarray(tables[held.group])[places // held.block_entries]
                where = held.bytes_at[blocks, places % held.block_entries]
                mine = np.ix_(entries, *held.elements, np.arange(held.array.dtype.nbytes))
                yield memory[regions[name]], where, whole[name][mine]
