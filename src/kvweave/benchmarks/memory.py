"""The memory that the measurements move: 61 latent layers of blocks, each word of it knowing where it belongs.

A piece is one block of one layer, the smallest thing that lies in one stretch on both sides. Word w of layer n holds
n * 2**40 + w at the source, so that what arrived can be checked without asking the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout, Region
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.spec import MLAAttentionSpec

LAYERS = 61
"""As many as DeepSeek-V3 has."""
GROUP = "full"
_ELEMENT_BYTES = 2
_WORD_BYTES = 8
_LAYER_STEP = 2**40


@dataclass(frozen=True, slots=True)
class CacheShape:
    """So many blocks of ``piece_bytes`` in each of ``layers`` layers; a piece is a multiple of 8 bytes a token."""

    piece_bytes: int
    num_blocks: int
    layers: int = LAYERS
    block_size: int = 16

    def layout(self, parallel: ParallelConfig | None = None) -> EngineLayout:
        """An engine of this cache, without addresses; one rank unless stated."""
        spec = MLAAttentionSpec(self.piece_bytes // self.block_size // _ELEMENT_BYTES)
        layers = tuple(CacheLayer(f"model.layers.{n}.self_attn", n, spec) for n in range(self.layers))
        model = ModelCache("benchmark", self.layers, (KVCacheGroup(GROUP, layers),))
        cache = CacheConfig(block_size=self.block_size, num_blocks=self.num_blocks)
        return EngineLayout.build(model, parallel or ParallelConfig(), cache)

    def tokens(self, num_blocks: int) -> int:
        """Tokens of a request that fills so many blocks."""
        return num_blocks * self.block_size

    def request_bytes(self, num_blocks: int) -> int:
        """Bytes of such a request."""
        return num_blocks * self.piece_bytes * self.layers

    def blocks_for(self, nbytes: int) -> int:
        """Blocks of a request of about so many bytes; at least one."""
        return max(1, round(nbytes / (self.piece_bytes * self.layers)))


class EngineMemory:
    """One rank's memory of a shape: every page touched; ``layout`` has its addresses."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        layout = shape.layout()
        self.layers: list[npt.NDArray[np.uint64]] = [
            np.zeros(region.nbytes // _WORD_BYTES, np.uint64) for region in layout.ranks[0].regions
        ]
        self.clear()
        regions = [Region(layer.ctypes.data, layer.nbytes) for layer in self.layers]
        self.layout = layout.relocated(layout.ranks[0].coordinates, regions)

    def label(self) -> None:
        """Gives every word the value that says where it belongs."""
        for number, layer in enumerate(self.layers):
            layer[:] = np.arange(len(layer), dtype=np.uint64) + np.uint64(number * _LAYER_STEP)

    def clear(self) -> None:
        """Makes every word a value that no label has; that touches every page."""
        for layer in self.layers:
            layer.fill(np.uint64(2**64 - 1))

    def wrong_blocks(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> int:
        """How many pieces do not hold, at the target's blocks, what a labelled source has in its own."""
        words = self.shape.piece_bytes // _WORD_BYTES
        labels = np.asarray(source_blocks, np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)
        wrong = 0
        for number, layer in enumerate(self.layers):
            found = layer.reshape(-1, words)[np.asarray(target_blocks, np.int64)]
            wrong += int((found != labels + np.uint64(number * _LAYER_STEP)).any(axis=1).sum())
        return wrong


def scattered(num_blocks: int, count: int, seed: int) -> list[int]:
    """``count`` of ``num_blocks`` blocks in random order."""
    chosen: list[int] = np.random.default_rng(seed).permutation(num_blocks)[:count].tolist()
    return chosen


def consecutive(count: int, first: int = 0) -> list[int]:
    """``count`` blocks one after another."""
    return list(range(first, first + count))
