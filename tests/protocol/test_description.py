"""An engine's description survives the wire, stays small, and cannot lie about what no engine could be."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvweave as kw
from kvweave.core.array import Axis, CacheArray, DType, TokenAxis, WindowReach
from kvweave.core.interval import Interval
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.spec import StatedArraysSpec
from kvweave.errors import RemoteProtocolError
from kvweave.protocol.description import decode_layout, encode_layout
from tests.protocol.examples import small_layout

SHAPES = {
    "deepseek-v3": kw.ParallelConfig(tp=8, dcp=2, interleave=16),
    "deepseek-v4-flash": kw.ParallelConfig(tp=4),
    "nemotron-h-8b": kw.ParallelConfig(tp=4, pp=2),
    "gemma-3-27b": kw.ParallelConfig(tp=2),
    "kimi-linear-48b-a3b": kw.ParallelConfig(tp=2),
    "jamba-v0.1": kw.ParallelConfig(tp=2),
    "llama-4-scout-17b-16e": kw.ParallelConfig(tp=2, pp=2, stage_layers=(20, 28)),
    "smollm2-135m": kw.ParallelConfig(tp=2, stated={"head": (Interval(0, 2), Interval(2, 3))}),
}


@pytest.mark.parametrize("preset", SHAPES)
def test_layout_survives_the_wire(preset: str) -> None:
    layout = kw.EngineLayout.build(kw.models.load(preset), SHAPES[preset], kw.CacheConfig(block_size=16))
    read = decode_layout(encode_layout(layout))
    assert (read.ranks, read.model, read.parallel) == (layout.ranks, layout.model, layout.parallel)
    assert kw.check_compatibility(read, layout) == []


def test_size_does_not_grow_with_the_blocks_and_little_with_the_ranks() -> None:
    model = kw.models.load("deepseek-v3")
    few, many = (
        len(encode_layout(kw.EngineLayout.build(model, kw.ParallelConfig(tp=64), kw.CacheConfig(num_blocks=blocks))))
        for blocks in (100, 100_000)
    )
    assert many < few * 1.2
    assert many < 150_000


def wire() -> dict[str, object]:
    return msgspec.msgpack.decode(encode_layout(small_layout()))


CHANGES = {
    "ranks that the sizes do not have": lambda d: d["parallel"].update(tp=3),
    "an engine of a million ranks": lambda d: d["parallel"].update(tp=10**6),
    "a negative size": lambda d: d["parallel"].update(tp=-2),
    "a box outside its axis": lambda d: d["ranks"][0][1][0][2].__setitem__(1, 10**6),
    "a place outside its region": lambda d: d["placements"][0].__setitem__(2, 2**40),
    "a region that does not exist": lambda d: d["placements"][0].__setitem__(1, 99),
    "a layer that does not exist": lambda d: d["placements"][0].__setitem__(0, 99),
    "half a place": lambda d: d["placements"][0].pop(),
    "a placement without layers": lambda d: d["placements"][0].clear(),
    "an array that does not exist": lambda d: d["ranks"][0][1][0].__setitem__(0, 99),
    "overlapping elements": lambda d: d["geometries"][0].__setitem__(4, 1),
    "a stride for no axis": lambda d: d["geometries"][0][5].append(4),
    "more blocks than memory": lambda d: d["ranks"][0][1][0].__setitem__(5, 10**9),
    "a share of no rank": lambda d: d["ranks"][0][1][0].__setitem__(3, [4, 4, 1]),
    "a share that never repeats": lambda d: d["ranks"][0][1][0].__setitem__(3, [2**30, 0, 1]),
    "memory beyond 64 bits": lambda d: d["ranks"][0][0][0].__setitem__(0, 2**64 - 5),
    "an unknown kind of memory": lambda d: d["ranks"][0][0][0].__setitem__(2, "TAPE"),
    "an unknown spec": lambda d: d["specs"][0].__setitem__(0, "CrossAttentionSpec"),
    "a spec without heads": lambda d: d["specs"][0][1].update(num_kv_heads=0),
    "an unknown reach": lambda d: d["arrays"][0][3].__setitem__(1, "far"),
    "an element of no bytes": lambda d: d["arrays"][0][2].__setitem__(1, 0),
    "an unknown field": lambda d: d.update(colour="red"),
    "a layer index outside": lambda d: d["layers"][0].__setitem__(1, 77),
    "many places in few bytes": lambda d: (
        d["placements"].append(d["placements"][0] * 600),
        d["ranks"][0].__setitem__(1, [[0, 0, [], None, 0, 1, 1, 0]] * 1000),
    ),
    "layers beyond any model": lambda d: d.update(layers=d["layers"] * 2100),
    "arrays beyond any layer": lambda d: d["specs"].__setitem__(0, ["StatedArraysSpec", {"stated": d["arrays"] * 300}]),
    "a group that does not exist": lambda d: d["layers"][0].__setitem__(2, 77),
}


@pytest.mark.parametrize("change", CHANGES)
def test_lie_is_found(change: str) -> None:
    described = wire()
    CHANGES[change](described)
    with pytest.raises(RemoteProtocolError, match="description"):
        decode_layout(msgspec.msgpack.encode(described))


@given(st.data())
def test_damage_raises_nothing_but_our_error(data: st.DataObject) -> None:
    damaged = bytearray(encode_layout(small_layout()))
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        layout = decode_layout(bytes(damaged))
        assert decode_layout(encode_layout(layout)).ranks == layout.ranks


@given(st.binary(max_size=200))
def test_random_bytes_are_no_description(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_layout(data)


def test_arrays_that_an_engine_states_itself_survive() -> None:
    half = DType.of("float16")
    axes = (Axis("head", 4, 4), Axis("dim", 4), Axis("lane", 16))
    window = CacheArray("k", axes, half, TokenAxis(1, WindowReach(8)))
    stated = StatedArraysSpec((window, CacheArray("scale", (Axis("dim", 1),), half, None)))
    model = ModelCache("m", 1, (KVCacheGroup("g", (CacheLayer("layers.0", 0, stated),)),))
    layout = kw.EngineLayout.build(model, kw.ParallelConfig(tp=2), kw.CacheConfig(num_blocks=4))
    found = decode_layout(encode_layout(layout))
    assert (found.model, found.ranks) == (layout.model, layout.ranks)
