"""What is written into paged, sharded memory comes out again, whatever the shape; and a plan moves it between two."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kvweave import CacheConfig, EngineLayout, ParallelConfig, plan_transfer
from kvweave.core.array import DType
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec
from kvweave.engines.hf.block_pool import BlockPool
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.engines.hf.paged_memory import PagedMemory
from kvweave.errors import LocalProtocolError

FLOAT = DType.of("float32")
NUM_TOKENS = 77


def _model() -> ModelCache:
    specs: dict[str, LayerSpec] = {
        "full": FullAttentionSpec(4, 8, 6, FLOAT),
        "window": SlidingWindowSpec(2, 8, 20, dtype=FLOAT),
        "latent": MLAAttentionSpec(12, FLOAT),
        "rate": MLAAttentionSpec(6, FLOAT, tokens_per_state=4),
        "state": MambaSpec.mamba2(8, 4, 2, 3, 4, FLOAT, FLOAT),
    }
    groups = [
        KVCacheGroup(name, tuple(CacheLayer(f"layers.{index}.{name}", index, spec) for index in range(3)))
        for name, spec in specs.items()
    ]
    return ModelCache("mixture", 3, tuple(groups))


def _request(model: ModelCache) -> CapturedCache:
    random = np.random.default_rng(5)
    arrays = {}
    for layer in model.layers():
        for array in layer.spec.arrays():
            axes = tuple(axis.size for axis in array.axes)
            first = array.tokens.reach.first_needed(NUM_TOKENS) if array.tokens else 0
            rows = (NUM_TOKENS // array.tokens.tokens_per_entry - first,) if array.tokens else ()
            data = random.random(rows + axes, dtype=np.float32)
            arrays[layer.name, array.part] = CapturedArray(first, data)
    return CapturedCache(NUM_TOKENS, arrays)


def _same(one: CapturedCache, other: CapturedCache) -> bool:
    return all(
        array.first_entry == other.arrays[key].first_entry and np.array_equal(array.data, other.arrays[key].data)
        for key, array in one.arrays.items()
    )


SHAPES = {
    "one rank": (ParallelConfig(), CacheConfig(16, num_blocks=12)),
    "tp 4, NHD": (ParallelConfig(tp=4), CacheConfig(24, "NHD", num_blocks=12, conv_order="DS")),
    "tp 2, pp 3, layers in a block row": (
        ParallelConfig(tp=2, pp=3),
        CacheConfig(32, "BLHNC", num_blocks=6, kernel_block_size=8),
    ),
    "tp 8, padded pages": (
        ParallelConfig(tp=8),
        CacheConfig(16, "BHLNC", num_blocks=9, page_padding=64, packing="region"),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_comes_out_again(shape: str) -> None:
    model = _model()
    memory = PagedMemory(EngineLayout.build(model, *SHAPES[shape]))
    tables = BlockPool(memory.layout, seed=1).allocate(NUM_TOKENS)
    request = _request(model)
    memory.write(request, tables)
    assert _same(request, memory.read(NUM_TOKENS, tables))


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("source", SHAPES)
def test_a_plan_moves_a_request_between_two_memories(source: str, target: str) -> None:
    model = _model()
    prefill, decode = (PagedMemory(EngineLayout.build(model, *SHAPES[shape])) for shape in (source, target))
    tables = [
        BlockPool(memory.layout, seed=number).allocate(NUM_TOKENS) for number, memory in enumerate((prefill, decode))
    ]
    request = _request(model)
    prefill.write(request, tables[0])
    plan = plan_transfer(prefill.layout, decode.layout)
    for rank in decode.layout.ranks:
        for rows in plan.descriptors(rank, *tables, num_tokens=NUM_TOKENS).values():
            for origin, address, nbytes in zip(rows.source_address, rows.target_address, rows.nbytes, strict=True):
                ctypes.memmove(int(address), int(origin), int(nbytes))
    assert _same(request, decode.read(NUM_TOKENS, tables[1]))


def test_replicas_that_differ_are_noticed() -> None:
    model = _model()
    memory = PagedMemory(EngineLayout.build(model, ParallelConfig(tp=2), CacheConfig(16, num_blocks=12)))
    tables = BlockPool(memory.layout).allocate(NUM_TOKENS)
    memory.write(_request(model), tables)
    latent = next(s for s in memory.layout.rank(tp=1).shards if s.group == "latent")
    region = memory.layout.rank(tp=1).regions[latent.places[0].region]
    ctypes.memset(region.address, 1, region.nbytes)
    with pytest.raises(LocalProtocolError, match="different bytes"):
        memory.read(NUM_TOKENS, tables)
