"""Arrays check themselves, and a reach says what the next token looks at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.array import Axis, CacheArray, ChunkReach, DType, FullReach, TokenAxis, WindowReach
from kvweave.errors import ConfigurationError

tokens = st.integers(0, 2**40)
spans = st.integers(1, 2**20)


@given(tokens)
def test_full_attention_looks_at_everything(next_token: int) -> None:
    assert FullReach().first_needed(next_token) == 0


@given(tokens, spans)
def test_a_window_looks_at_its_last_tokens_the_computed_one_included(next_token: int, window: int) -> None:
    first = WindowReach(window).first_needed(next_token)
    assert next_token - first + 1 == min(window, next_token + 1)


@given(tokens, spans)
def test_a_chunk_looks_back_to_its_own_beginning(next_token: int, chunk: int) -> None:
    first = ChunkReach(chunk).first_needed(next_token)
    assert first % chunk == 0
    assert first <= next_token < first + chunk


@given(tokens, spans, st.sampled_from([WindowReach, ChunkReach]))
def test_what_is_out_of_reach_stays_out_of_reach(
    next_token: int, span: int, reach: type[WindowReach] | type[ChunkReach]
) -> None:
    assert reach(span).first_needed(next_token) <= reach(span).first_needed(next_token + 1)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), min_size=1, max_size=4), st.integers(1, 16))
def test_an_entry_has_the_bytes_of_all_its_elements(axes: list[tuple[int, int]], item: int) -> None:
    named = tuple(Axis(f"axis{number}", width * max(1, units), units) for number, (width, units) in enumerate(axes))
    array = CacheArray("part", named, DType("opaque", item), None)
    assert array.entry_bytes == item * prod(axis.size for axis in named)


@given(st.integers(1, 200), st.integers(1, 200))
def test_an_axis_is_a_whole_number_of_units(size: int, units: int) -> None:
    if size % units == 0:
        assert Axis("head", size, units).units == units
        return
    with pytest.raises(ConfigurationError, match=f"size {size} is not a multiple of its {units} units"):
        Axis("head", size, units)


def windowed(tokens: int) -> TokenAxis:
    return TokenAxis(reach=WindowReach(tokens))


def chunked(tokens: int) -> TokenAxis:
    return TokenAxis(reach=ChunkReach(tokens))


NOT_SIZES = [0, -1, True, 1.5, "4"]


@pytest.mark.parametrize("value", NOT_SIZES)
@pytest.mark.parametrize(
    "build",
    [
        partial(Axis, "head"),
        TokenAxis,
        windowed,
        chunked,
        partial(DType, "opaque"),
    ],
    ids=["axis size", "tokens per entry", "window", "chunk", "item bytes"],
)
def test_what_is_no_size_is_refused_with_its_value(build: Callable[[object], object], value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{value!r}; it must be a whole number of at least 1"):
        build(value)


def test_negative_units_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="-2 units"):
        Axis("head", 4, -2)


def test_axes_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\['dim', 'dim'\] repeat"):
        CacheArray("k", (Axis("dim", 2), Axis("dim", 3)), DType.of("bfloat16"), None)


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("float32", 4), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_ds_mla", 656)],
    ids=str,
)
def test_a_known_dtype_has_its_size(name: str, nbytes: int) -> None:
    assert DType.of(name) == DType(name, nbytes)


def test_a_dtype_of_ones_own_is_taken_as_it_is() -> None:
    entry = DType("my_latent", 584)
    assert DType.of(entry) is entry


def test_an_unknown_dtype_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match="'float12' is not known; use one of bfloat16"):
        DType.of("float12")


@pytest.mark.parametrize(("torch", "vllm"), [("float8_e4m3fn", "fp8_e4m3"), ("float8_e5m2", "fp8_e5m2")])
def test_names_of_one_type_are_one_type(torch: str, vllm: str) -> None:
    assert DType.of(torch) == DType.of(vllm) != DType.of("uint8")


def test_arrays_are_told_in_words() -> None:
    axes = Axis("channel", 8, 2), Axis("tap", 3)
    told = [str(CacheArray("x", axes, DType.of("bfloat16"), tokens)) for tokens in (None, TokenAxis(4, WindowReach(9)))]
    assert told == [
        "bfloat16 over channel of 8 in 2 units, tap of 3 (a state)",
        "bfloat16 over channel of 8 in 2 units, tap of 3 (one entry for 4 tokens, window of 9 tokens)",
    ]
    assert (str(FullReach()), str(ChunkReach(8))) == ("all tokens", "chunk of 8 tokens")
