"""Small models and engines in one line each, and the oracle's answer for a pair of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvweave.core.array import Axis, DType
from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import CircularBufferSpec, FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec, StatePart
from kvweave.testing.oracle import Oracle, check_plan
from kvweave.testing.requests import Request, block_tables

BFLOAT16, FLOAT32 = DType.of("bfloat16"), DType.of("float32")


def model_of(*specs: LayerSpec, group: str = "full") -> ModelCache:
    """One layer for each spec, all in one group."""
    return model_of_groups({group: specs})


def model_of_groups(groups: dict[str, Iterable[LayerSpec]]) -> ModelCache:
    """Layers ``<group>.0``, ``<group>.1`` ... of each group, at decoder layers 0, 1 ..."""
    built = tuple(
        KVCacheGroup(name, tuple(CacheLayer(f"{name}.{n}", n, spec) for n, spec in enumerate(specs)))
        for name, specs in groups.items()
    )
    return ModelCache("test model", max(len(group.layers) for group in built), built)


def heads_of(count: int, size: int = 2) -> FullAttentionSpec:
    return FullAttentionSpec(count, size)


def mamba2_of(groups: int, heads: int) -> MambaSpec:
    return MambaSpec.mamba2(heads, 1, groups, 2, 3, BFLOAT16, FLOAT32)


def open_group(slots: int = 4, width: int = 3) -> CircularBufferSpec:
    """Buffers, gates and overlap of a compressed cache's open group."""
    axes = (Axis("slot", slots), Axis("dim", width))
    return CircularBufferSpec(
        (
            StatePart("buffer.kv", axes, BFLOAT16),
            StatePart("buffer.gate", axes, BFLOAT16),
            StatePart("overlap.kv", axes, BFLOAT16),
            StatePart("overlap.gate", axes, FLOAT32),
        )
    )


def deepseek_v4() -> ModelCache:
    """Windowed latents, entries of 4 and of 128 tokens, indexer entries and open groups; kinds mix in one table."""
    latent = MLAAttentionSpec(3, tokens_per_state=4), MLAAttentionSpec(2, tokens_per_state=128)
    return model_of_groups(
        {
            "window.32": [MLAAttentionSpec(3, sliding_window=32), MLAAttentionSpec(3, sliding_window=32)],
            "rates": [*latent, MLAAttentionSpec(2, tokens_per_state=4, part="indexer")],
            "state": [open_group(4), open_group(128, 2)],
        }
    )


def engine(model: ModelCache, tp: int = 1, cache: CacheConfig | None = None, **parallel: object) -> EngineLayout:
    """An engine with a small pool of blocks."""
    return EngineLayout.build(model, ParallelConfig(tp=tp, **parallel), cache or CacheConfig(num_blocks=8))


def stated_heads(count: int, tp: int) -> dict[str, tuple[Interval, ...]]:
    """Intervals for sizes that the rules refuse: as even as possible, or replicas of one unit."""
    if count >= tp:
        shares = np.array_split(np.arange(count), tp)
        return {"head": tuple(Interval(int(share[0]), int(share[-1]) + 1) for share in shares)}
    return {"head": tuple(Interval(rank * count // tp, rank * count // tp + 1) for rank in range(tp))}


def fits(count: int, tp: int) -> bool:
    return count % tp == 0 or tp % count == 0


def request_between(
    oracle: Oracle,
    num_tokens: int,
    start_token: int = 0,
    salt: int = 0,
    *,
    let_go: float = 1.0,
    spare: int = 0,
    stripes: int = 1,
) -> Request:
    """A request with blocks in random order on both sides."""
    random = np.random.default_rng([num_tokens, start_token, salt])
    source, target = (block_tables(images, num_tokens, random, let_go=let_go, spare=spare) for images in oracle.images)
    return Request(num_tokens, start_token, source, target, salt, stripes)


def faults(prefill: EngineLayout, decode: EngineLayout, num_tokens: int = 20, start_token: int = 0) -> list[str]:
    """What the oracle finds wrong with a transfer between two engines."""
    oracle = Oracle(prefill, decode)
    return check_plan(plan_transfer(prefill, decode), request_between(oracle, num_tokens, start_token), oracle)
