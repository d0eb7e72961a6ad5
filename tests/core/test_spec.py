"""Which arrays a layer caches: names, sizes, units and reach of each kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.array import Axis, CacheArray, ChunkReach, DType, FullReach, WindowReach
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    StatePart,
)

HALF, FULL = DType.of("bfloat16"), DType.of("float32")
counts, widths = st.integers(1, 64), st.integers(1, 256)
attention = st.one_of(
    st.builds(FullAttentionSpec, counts, widths, st.none() | widths),
    st.builds(SlidingWindowSpec, counts, widths, widths, st.none() | widths),
    st.builds(ChunkedLocalAttentionSpec, counts, widths, widths, st.none() | widths),
)
mamba2 = st.builds(
    MambaSpec.mamba2, counts, widths, counts, widths, st.integers(2, 5), st.just(HALF), st.just(FULL), st.integers(0, 4)
)
delta_nets = st.builds(
    MambaSpec.gdn, counts, counts, widths, widths, st.integers(2, 5), st.just(HALF), st.just(FULL), st.integers(0, 4)
)


def parts(spec: LayerSpec) -> dict[str, CacheArray]:
    return {array.part: array for array in spec.arrays()}


def axis(array: CacheArray, name: str) -> Axis:
    return next(axis for axis in array.axes if axis.name == name)


@given(attention)
def test_attention_keeps_keys_and_values_split_by_head(
    spec: FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec,
) -> None:
    found = parts(spec)
    assert list(found) == ["k", "v"]
    assert {axis(array, "head") for array in found.values()} == {Axis("head", spec.num_kv_heads, spec.num_kv_heads)}
    assert axis(found["k"], "dim") == Axis("dim", spec.head_size)
    assert axis(found["v"], "dim") == Axis("dim", spec.head_size_v or spec.head_size)


@given(attention)
def test_keys_and_values_reach_equally_far(
    spec: FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec,
) -> None:
    match spec:
        case FullAttentionSpec():
            reach: object = FullReach()
        case SlidingWindowSpec():
            reach = WindowReach(spec.sliding_window)
        case _:
            reach = ChunkReach(spec.attention_chunk_size)
    assert {array.tokens.reach for array in spec.arrays() if array.tokens} == {reach}


@given(widths, st.integers(1, 128), st.none() | widths)
def test_a_latent_is_one_vector_that_no_rank_shares_out(head_size: int, rate: int, window: int | None) -> None:
    (array,) = MLAAttentionSpec(head_size, tokens_per_state=rate, sliding_window=window, part="indexer").arrays()
    assert (array.part, array.axes) == ("indexer", (Axis("dim", head_size, 0),))
    assert array.tokens is not None
    assert array.tokens.tokens_per_entry == rate
    assert array.tokens.reach == (FullReach() if window is None else WindowReach(window))


@pytest.mark.parametrize(
    ("spec", "dealt_out"),
    [
        (FullAttentionSpec(2, 8), True),
        (SlidingWindowSpec(2, 8, 16), False),
        (ChunkedLocalAttentionSpec(2, 8, 16), False),
        (MLAAttentionSpec(8), True),
        (MLAAttentionSpec(8, sliding_window=16), False),
        (MLAAttentionSpec(8, tokens_per_state=4), False),
        (MLAAttentionSpec(8, tokens_per_state=4, dcp_sharded=True), True),
        (MLAAttentionSpec(8, dcp_sharded=False), False),
    ],
    ids=["full", "window", "chunk", "latent", "windowed latent", "compressed", "stated so", "stated otherwise"],
)
def test_dcp_deals_out_what_is_full_and_plain_unless_stated(spec: LayerSpec, *, dealt_out: bool) -> None:
    assert {array.tokens.dcp_sharded for array in spec.arrays() if array.tokens} == {dealt_out}


@given(st.integers(1, 512), widths, st.integers(2, 5), st.integers(0, 4))
def test_mamba1_is_split_by_channel_throughout(channels: int, state: int, kernel: int, speculative: int) -> None:
    found = parts(MambaSpec.mamba1(channels, state, kernel, HALF, FULL, speculative))
    assert list(found) == ["conv.x", "ssm"]
    assert {axis(array, "channel") for array in found.values()} == {Axis("channel", channels, channels)}
    assert axis(found["conv.x"], "tap").size == kernel - 1 + speculative
    assert axis(found["ssm"], "state").size == state


@given(counts, widths, counts, widths)
def test_mamba2_splits_values_by_head_and_the_rest_by_group(
    heads: int, head_size: int, groups: int, state: int
) -> None:
    found = parts(MambaSpec.mamba2(heads, head_size, groups, state, 4, HALF, FULL))
    assert list(found) == ["conv.x", "conv.b", "conv.c", "ssm"]
    assert axis(found["conv.x"], "channel") == Axis("channel", heads * head_size, heads)
    assert (
        axis(found["conv.b"], "channel") == axis(found["conv.c"], "channel") == Axis("channel", groups * state, groups)
    )
    assert found["ssm"].axes == (Axis("head", heads, heads), Axis("dim", head_size), Axis("state", state))


@given(counts, counts, widths, widths)
def test_a_delta_net_splits_queries_and_keys_by_key_head_and_the_rest_by_value_head(
    key_heads: int, value_heads: int, key_size: int, value_size: int
) -> None:
    found = parts(MambaSpec.gdn(key_heads, value_heads, key_size, value_size, 4, HALF, FULL))
    keys = Axis("channel", key_heads * key_size, key_heads)
    assert list(found) == ["conv.q", "conv.k", "conv.v", "ssm"]
    assert axis(found["conv.q"], "channel") == axis(found["conv.k"], "channel") == keys
    assert axis(found["conv.v"], "channel") == Axis("channel", value_heads * value_size, value_heads)
    assert found["ssm"].axes == (
        Axis("head", value_heads, value_heads),
        Axis("dim", value_size),
        Axis("state", key_size),
    )


@given(counts, widths)
def test_kda_is_a_delta_net_with_as_many_keys_as_values(heads: int, size: int) -> None:
    kda = MambaSpec.kda(heads, size, 4, HALF, FULL)
    assert kda.arrays() == MambaSpec.gdn(heads, heads, size, size, 4, HALF, FULL).arrays()
    assert kda.mamba_type == "kda_attention"


@given(mamba2 | delta_nets)
def test_a_state_has_no_tokens_and_a_dtype_of_its_own_per_tensor(spec: MambaSpec) -> None:
    assert all(array.tokens is None for array in spec.arrays())
    assert {array.part: array.dtype for array in spec.arrays()} == {
        part: FULL if part == "ssm" else HALF for part in parts(spec)
    }


@given(st.lists(st.tuples(widths, widths), min_size=1, max_size=5))
def test_an_open_group_has_as_many_buffers_as_stated(shapes: list[tuple[int, int]]) -> None:
    states = tuple(
        StatePart(f"buffer.{number}", (Axis("slot", slots), Axis("dim", dim)), FULL)
        for number, (slots, dim) in enumerate(shapes)
    )
    arrays = CircularBufferSpec(states).arrays()
    assert [(array.part, array.axes, array.tokens) for array in arrays] == [
        (state.part, state.axes, None) for state in states
    ]
