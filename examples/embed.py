"""How an engine embeds kvweave: two processes of different shape, one request's cache moved over NIXL.

Run it with ``python examples/embed.py``. What is the engine's own stands in ``toy_model`` and ``EngineMemory``; what it
says to kvweave are the few lines of ``prefill_engine`` and ``decode_engine``.
"""

import json
import multiprocessing
import queue
import sys
import zlib

import numpy as np

import kvweave as kw
from kvweave.core.array import DType
from kvweave.core.layout import Region
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.spec import FullAttentionSpec
from kvweave.runtime import DecodeEngine, PrefillEngine
from kvweave.transport.nixl import NixlTransport

NUM_TOKENS = 100
PREFILL = (kw.ParallelConfig(tp=2), kw.CacheConfig(block_size=16, num_blocks=32, layout="HND"))
DECODE = (kw.ParallelConfig(tp=4), kw.CacheConfig(block_size=24, num_blocks=16, layout="NHD"))


def toy_model():
    """Three layers of grouped-query attention. For a published model: ``kw.models.load("path/to/config.json")``."""
    spec = FullAttentionSpec(num_kv_heads=4, head_size=32, dtype=DType.of("float16"))
    layers = tuple(CacheLayer(f"model.layers.{i}.self_attn", i, spec) for i in range(3))
    return ModelCache("toy", len(layers), (KVCacheGroup("full", layers),))  # layers of one group share a block table


class EngineMemory:
    """Every rank's cache memory; ``layout`` describes it with its real addresses."""

    def __init__(self, parallel, cache):
        self.layout = kw.EngineLayout.build(toy_model(), parallel, cache)
        self.arrays = {}
        for rank in self.layout.ranks:  # a rank has a few regions; here, as in vLLM, one per layer
            arrays = [np.zeros(region.nbytes, np.uint8) for region in rank.regions]
            self.arrays[rank.coordinates] = arrays
            regions = [Region(array.ctypes.data, array.nbytes) for array in arrays]
            self.layout = self.layout.relocated(rank.coordinates, regions)

    def views(self):
        """Every rank's share of every layer: layer, part, its heads, its memory as (block, token, head, dim)."""
        for rank in self.layout.ranks:
            for shard in rank.shards:  # what lies in the same way in several layers is one shard, in several places
                sizes = (shard.num_blocks, shard.geometry.block_entries, *shard.extents)
                strides = (shard.geometry.block_stride, shard.geometry.entry_stride, *shard.geometry.axis_strides)
                heads = slice(shard.box[0].start, shard.box[0].stop)
                for place in shard.places:
                    memory = self.arrays[rank.coordinates][place.region]
                    yield place.layer, shard.array.part, heads, np.ndarray(sizes, "i2", memory, place.offset, strides)


def values(layer, part):
    """What the model computes for all heads: (token, head, dim). Here it is random, and the same in both processes."""
    return np.random.default_rng(zlib.crc32(f"{layer} {part}".encode())).integers(1, 9999, (NUM_TOKENS, 4, 32), "i2")


def prefill_engine(channel):
    """Computes a prompt, offers its cache, and waits until its blocks may be used again."""
    memory, blocks, released = EngineMemory(*PREFILL), [5, 2, 11, 7, 3, 20, 8], queue.Queue()
    at = np.arange(NUM_TOKENS)
    for layer, part, heads, view in memory.views():
        view[np.array(blocks)[at // 16], at % 16] = values(layer, part)[:, heads]
    with PrefillEngine(memory.layout, transport=NixlTransport) as engine:
        reference = engine.offer("request 1", NUM_TOKENS, blocks={"full": blocks}, on_release=released.put)
        channel.send(json.dumps(reference.params()))  # in real life: kv_transfer_params, through the proxy
        print(f"prefill: blocks are free again: {released.get(timeout=120).reason.value}", flush=True)


def decode_engine(channel):
    """Fetches the offered cache into its own blocks, and looks whether every element is there."""
    memory, blocks = EngineMemory(*DECODE), [9, 1, 4, 12, 6]
    with DecodeEngine(memory.layout, transport=NixlTransport) as engine:
        delivered = engine.fetch(json.loads(channel.recv()), blocks={"full": blocks}).result()  # or raises why not
    for rank, sources in delivered.sources.items():
        print(f"decode: {rank} read " + ", ".join(f"{size:,} bytes of {source}" for source, size in sources.items()))
    at = np.arange(NUM_TOKENS)
    for layer, part, heads, view in memory.views():
        np.testing.assert_array_equal(view[np.array(blocks)[at // 24], at % 24], values(layer, part)[:, heads])
    print(f"decode: all {delivered.nbytes:,} bytes are right, in {delivered.num_rows} pieces", flush=True)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    engines = [spawn.Process(target=prefill_engine, args=(here,)), spawn.Process(target=decode_engine, args=(there,))]
    for engine in engines:
        engine.start()
    here.close(), there.close()  # each engine has its own end now, and sees when the other one is gone
    for engine in engines:
        engine.join()
    sys.exit(any(engine.exitcode for engine in engines))
