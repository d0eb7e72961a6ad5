"""The pairs of engines of the load test: SmolLM2-135M's cache, small and large requests, equal and unequal shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

import kvweave as kw
from kvweave.core.layout import EngineLayout, Region

MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines and how many tokens every request has."""

    num_tokens: int
    prefill: kw.ParallelConfig
    decode: kw.ParallelConfig
    prefill_cache: kw.CacheConfig
    decode_cache: kw.CacheConfig

    def prefill_layout(self, requests: int) -> EngineLayout:
        """With room for so many requests."""
        return self._layout(self.prefill, self.prefill_cache, requests)

    def decode_layout(self, requests: int) -> EngineLayout:
        """With room for so many requests."""
        return self._layout(self.decode, self.decode_cache, requests)

    def table(self, block_size: int, place: int) -> list[int]:
        """The blocks of the request at that place of an engine's memory."""
        length = -(-self.num_tokens // block_size)
        return list(range(place * length, (place + 1) * length))

    def _layout(self, parallel: kw.ParallelConfig, cache: kw.CacheConfig, requests: int) -> EngineLayout:
        blocks = len(self.table(cache.block_size, 0)) * requests
        return EngineLayout.build(kw.models.load(MODEL), parallel, replace(cache, num_blocks=blocks))


def _alike(num_tokens: int) -> Pair:
    cache = kw.CacheConfig(block_size=16, num_blocks=1)
    return Pair(num_tokens, kw.ParallelConfig(tp=1), kw.ParallelConfig(tp=1), cache, cache)


def _unlike(num_tokens: int) -> Pair:
    small, large = (kw.CacheConfig(block_size=size, num_blocks=1) for size in (16, 64))
    return Pair(num_tokens, kw.ParallelConfig(tp=3), kw.ParallelConfig(tp=1), small, large)


PAIRS: Mapping[str, Pair] = {
    "64 tokens, tp 1 > 1": _alike(64),
    "64 tokens, tp 3 > 1, block 16 > 64": _unlike(64),
    "512 tokens, tp 1 > 1": _alike(512),
    "512 tokens, tp 3 > 1, block 16 > 64": _unlike(512),
}


class Memory:
    """An engine's memory, every byte of it ``fill``; ``layout`` has its addresses."""

    def __init__(self, layout: EngineLayout, fill: int) -> None:
        self._buffers: list[np.ndarray] = []
        for rank in layout.ranks:
            buffers = [np.full(region.nbytes, fill, np.uint8) for region in rank.regions]
            self._buffers += buffers
            layout = layout.relocated(rank.coordinates, [Region(b.ctypes.data, b.nbytes) for b in buffers])
        self.layout = layout

    def wipe(self) -> None:
        """Makes every byte 0."""
        for buffer in self._buffers:
            buffer.fill(0)

    def bytes_that_are(self, value: int) -> int:
        """How many bytes have that value."""
        return sum(int(np.count_nonzero(buffer == value)) for buffer in self._buffers)
