"""The two engines of ``bench.progressive``: the cache of Llama 3.1 8B, in blocks of 16 tokens in random order."""

from __future__ import annotations

import random

import kvweave as kw
from kvweave.core.layout import EngineLayout

MODEL = "llama-3.1-8b"
NUM_TOKENS = 2048
CHUNKS = 4
BLOCK_SIZE = 16


def layout() -> EngineLayout:
    """With room for one request."""
    cache = kw.CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_TOKENS // BLOCK_SIZE)
    return EngineLayout.build(kw.models.load(MODEL), kw.ParallelConfig(tp=1), cache)


def blocks(side: str, number: int) -> list[int]:
    """A request's blocks on one side, in an order of their own."""
    table = list(range(NUM_TOKENS // BLOCK_SIZE))
    random.Random(f"{side} {number}").shuffle(table)
    return table
