from __future__ import annotations

import math

import pytest

from kvweave.core.cache_config import CacheConfig, KVLayout
from kvweave.errors import ConfigurationError


@pytest.mark.parametrize(
    ("short", "layout"), [("HND", KVLayout.LBHNC), ("NHD", KVLayout.LBNHC), ("BHLNC", KVLayout.BHLNC)]
)
def test_short_and_long_names_of_memory_orders(short: str, layout: KVLayout) -> None:
    assert CacheConfig(layout=short).layout is layout


@pytest.mark.parametrize("field", ["layout", "packing", "conv_order", "memory"])
def test_an_unknown_name_is_refused_with_the_known_ones(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}: 'other' is not known; use one of "):
        CacheConfig(**{field: "other"})


@pytest.mark.parametrize("field", ["block_size", "num_blocks", "page_padding", "speculative_blocks", "device"])
@pytest.mark.parametrize("value", [-1, 1.5, math.nan, True, "16", None], ids=repr)
def test_a_size_that_is_no_size_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}: .* is not a whole number of at least"):
        CacheConfig(**{field: value})


@pytest.mark.parametrize("field", ["block_size", "num_blocks"])
def test_zero_blocks_or_tokens_are_refused(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}: 0 is not a whole number of at least 1"):
        CacheConfig(**{field: 0})


@pytest.mark.parametrize("kernel", [0, -4, 5, 32, 2.0, True], ids=repr)
def test_a_kernel_block_must_divide_the_block(kernel: object) -> None:
    with pytest.raises(
        ConfigurationError, match=f"kernel_block_size: {kernel!r} does not divide block_size=16; choose a divisor"
    ):
        CacheConfig(block_size=16, kernel_block_size=kernel)


def test_scratch_blocks_leave_one_for_the_state():
    assert CacheConfig(num_blocks=3, speculative_blocks=2).speculative_blocks == 2
    with pytest.raises(ConfigurationError, match=r"speculative_blocks: 3 of num_blocks=3"):
        CacheConfig(num_blocks=3, speculative_blocks=3)
