"""What planning costs: DeepSeek-V3 between unequal engines, and the rows of a request of 128k tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import kvweave as kw
from bench.clock import Figure, median_seconds
from bench.incumbent import descriptor_ids
from kvweave.core.descriptors import RequestDescriptors

BLOCK_SIZE = 64
TOKENS = 131_072
POOL_BLOCKS = 8_192
COPY_BYTES = 256 << 20


def figures() -> Iterator[Figure]:
    """All figures, one after the other as they are measured."""
    copy = _copy_seconds_per_byte()
    yield Figure("memcpy", 1e-9 / copy, "GB/s", f"numpy copy of {COPY_BYTES >> 20} MiB, one core")
    yield from _planning()
    yield from _rows(copy)


def _copy_seconds_per_byte() -> float:
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    target = np.zeros_like(source)
    return median_seconds(lambda: np.copyto(target, source)) / COPY_BYTES


def _engine(tp: int) -> kw.EngineLayout:
    cache = kw.CacheConfig(block_size=BLOCK_SIZE, num_blocks=POOL_BLOCKS)
    return kw.EngineLayout.build(kw.models.load("deepseek-v3"), kw.ParallelConfig(tp=tp), cache)


def _planning() -> Iterator[Figure]:
    prefill, decode = _engine(16), _engine(4)
    one = median_seconds(lambda: kw.plan_transfer(prefill, decode, target=decode.rank(tp=0)))
    yield Figure("plan, one decode rank, tp 16 -> 4", one * 1e3, "ms", "limit 50 ms")
    wide, wide_too = _engine(64), _engine(64)
    every = median_seconds(lambda: kw.plan_transfer(wide, wide_too), runs=3)
    yield Figure("plan, all ranks, tp 64 -> 64", every * 1e3, "ms", "limit 2000 ms")


def _columns(described: RequestDescriptors) -> None:
    """Makes every row's addresses and size, which a read does in parts, as it posts them."""
    for rows in described.values():
        _ = rows.source_address, rows.target_address, rows.nbytes


def _rows(copy_seconds_per_byte: float) -> Iterator[Figure]:
    prefill, decode = _engine(16), _engine(4)
    target = decode.rank(tp=0)
    plan = kw.plan_transfer(prefill, decode, target=target)
    random = np.random.default_rng(1)
    for tokens in (TOKENS // 4, TOKENS // 2, TOKENS):
        blocks = tokens // BLOCK_SIZE
        source, there = (random.permutation(POOL_BLOCKS)[:blocks] for _ in range(2))
        seconds = median_seconds(lambda: _columns(plan.descriptors(target, source, there, num_tokens=tokens)))  # noqa: B023
        found = plan.descriptors(target, source, there, num_tokens=tokens)
        per_row = seconds / found.num_rows * 1e9
        yield Figure(
            f"rows of {tokens // 1024}k tokens, fragmented",
            seconds * 1e3,
            "ms",
            f"{found.num_rows:,} rows, {per_row:.0f} ns each",
        )
    share = seconds / (found.total_bytes * copy_seconds_per_byte)
    yield Figure("  as a share of copying those bytes", share * 100, "%", f"{found.total_bytes / 2**30:.1f} GiB")
    ids = descriptor_ids(POOL_BLOCKS, source.tolist(), there.tolist())
    if ids is None:
        yield Figure("  vLLM's ids for the same request", float("nan"), "ms", "vLLM is not installed here")
    else:
        yield Figure(
            "  vLLM's ids for the same request", median_seconds(ids) * 1e3, "ms", "ids of prepared rows, both sides"
        )
    whole = np.arange(TOKENS // BLOCK_SIZE)
    seconds = median_seconds(lambda: _columns(plan.descriptors(target, whole, whole, num_tokens=TOKENS)))
    rows = plan.descriptors(target, whole, whole, num_tokens=TOKENS).num_rows
    yield Figure(f"rows of {TOKENS // 1024}k tokens, contiguous", seconds * 1e3, "ms", f"{rows:,} rows, one a layer")
