"""The demonstration over every model family and pair of shapes: what runs, and what no engine could build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvweave.core.cache_config import CacheConfig
from kvweave.core.parallel import ParallelConfig
from kvweave.engines.hf.demo import Demonstration, Stage
from kvweave.engines.hf.engine import EngineShape
from kvweave.errors import KVWeaveError, LayoutError


@dataclass(frozen=True, slots=True)
class ShapePair:
    """Two engine shapes and what to call them."""

    name: str
    prefill: EngineShape
    decode: EngineShape


@dataclass(frozen=True, slots=True)
class SweepResult:
    """One family in one pair of shapes: a demonstration, or why there is none.

    ``impossible``: no engine could have such a shape. ``failed``: it should have worked.
    """

    family: str
    pair: str
    demonstration: Demonstration | None = None
    impossible: str = ""
    failed: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong."""
        return bool(self.impossible) or (self.demonstration is not None and self.demonstration.ok)


def _pair(name: str, prefill: EngineShape, decode: EngineShape) -> ShapePair:
    return ShapePair(name, prefill, decode)


PAIRS = (
    _pair(
        "tp 4 > 2, block 16 > 64, HND > NHD",
        EngineShape(ParallelConfig(tp=4), CacheConfig(16, "HND")),
        EngineShape(ParallelConfig(tp=2), CacheConfig(64, "NHD")),
    ),
    _pair(
        "tp 2 > 4, block 32 > 16, NHD > HND, SD > DS",
        EngineShape(ParallelConfig(tp=2), CacheConfig(32, "NHD", conv_order="SD", packing="region")),
        EngineShape(ParallelConfig(tp=4), CacheConfig(16, "HND", conv_order="DS")),
    ),
    _pair(
        "tp 3 > 2, block 16 > 24",
        EngineShape(ParallelConfig(tp=3), CacheConfig(16)),
        EngineShape(ParallelConfig(tp=2), CacheConfig(24)),
    ),
    _pair(
        "tp 3 > 1, block 16 > 64, NHD > HND",
        EngineShape(ParallelConfig(tp=3), CacheConfig(16, "NHD")),
        EngineShape(ParallelConfig(tp=1), CacheConfig(64, "HND")),
    ),
    _pair(
        "tp 2, pp 2 > tp 1, block 64 > 16, kernel blocks, BLNHC > BHLNC",
        EngineShape(ParallelConfig(tp=2, pp=2), CacheConfig(64, "BLNHC", kernel_block_size=16, page_padding=128)),
        EngineShape(ParallelConfig(tp=1), CacheConfig(16, "BHLNC")),
    ),
)


def sweep(
    stage: Stage,
    families: Sequence[str],
    pairs: Sequence[ShapePair] = PAIRS,
    max_new_tokens: int = 24,
    chunks: int = 1,
) -> Iterator[SweepResult]:
    """Every family in every pair, one result as soon as it is there; ``chunks`` as in ``Stage.run``."""
    for family in families:
        for pair in pairs:
            yield _try(stage, family, pair, max_new_tokens, chunks)


def _try(stage: Stage, family: str, pair: ShapePair, max_new_tokens: int, chunks: int) -> SweepResult:
    try:
        shown = stage.run(f"tiny:{family}", pair.prefill, pair.decode, max_new_tokens=max_new_tokens, chunks=chunks)
    except LayoutError as error:
        return SweepResult(family, pair.name, impossible=str(error))
    except KVWeaveError as error:
        return SweepResult(family, pair.name, failed=str(error))
    return SweepResult(family, pair.name, shown)
