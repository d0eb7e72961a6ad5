from __future__ import annotations

import numpy as np
import pytest

from kvweave.core.array import Axis
from kvweave.core.cache_config import CacheConfig
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.spec import FullAttentionSpec, MambaSpec
from kvweave.testing.memory_image import rank_image, stage_of_layers, tensor_share
from tests.core.engines import BFLOAT16, model_of

TWO_LAYERS = model_of(FullAttentionSpec(2, 3, 1), FullAttentionSpec(2, 3, 1))
"""Per token and head: 6 bytes of key, 2 of value."""


def first_bytes(layout: str, packing: str = "content") -> dict[str, int]:
    """Position of one element after one step along each axis; k of layer 0, blocks of four tokens, two per kernel."""
    cache = CacheConfig(4, layout, num_blocks=3, kernel_block_size=2, packing=packing, page_padding=10)
    image = rank_image(TWO_LAYERS, ParallelConfig(), cache, RankCoordinates())
    key, value = (image.arrays["full.0", part].bytes_at[..., 0] for part in ("k", "v"))
    second = image.arrays["full.1", "k"].bytes_at[..., 0]
    found = {"token": key[0, 1, 0, 0], "kernel": key[0, 2, 0, 0], "block": key[1, 0, 0, 0], "head": key[0, 0, 1, 0]}
    return {name: int(at) for name, at in found.items()} | {
        "v": int(value[0, 0, 0, 0]),
        "layer": int(second[0, 0, 0, 0]),
    }


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        ("LBHNC", {"token": 8, "kernel": 32, "block": 74, "head": 16, "v": 6, "layer": 0}),
        ("LBNHC", {"token": 16, "kernel": 32, "block": 74, "head": 8, "v": 6, "layer": 0}),
        ("LHBNC", {"token": 8, "kernel": 16, "block": 42, "head": 126, "v": 6, "layer": 0}),
        ("BLHNC", {"token": 8, "kernel": 64, "block": 138, "head": 16, "v": 6, "layer": 32}),
        ("BLNHC", {"token": 16, "kernel": 64, "block": 138, "head": 8, "v": 6, "layer": 32}),
        ("BHLNC", {"token": 8, "kernel": 64, "block": 138, "head": 32, "v": 6, "layer": 16}),
    ],
)
def test_a_memory_order_nests_in_the_order_of_its_name(layout: str, steps: dict[str, int]) -> None:
    assert first_bytes(layout) == steps


def test_keys_and_values_apart_have_buffers_of_their_own() -> None:
    image = rank_image(TWO_LAYERS, ParallelConfig(), CacheConfig(packing="region"), RankCoordinates())
    assert len(image.buffers) == 4 and image.contents(0) == {("full.0", "k")}


@pytest.mark.parametrize(("order", "tap", "second_section"), [("DS", 2, 4 * 3 * 2), ("SD", 8 * 2, 4 * 2)])
def test_conv_sections_follow_one_another_or_lie_side_by_side(order: str, tap: int, second_section: int) -> None:
    model = model_of(MambaSpec.mamba2(4, 1, 2, 1, 4, BFLOAT16, BFLOAT16), group="state")
    image = rank_image(model, ParallelConfig(), CacheConfig(conv_order=order), RankCoordinates())
    assert image.arrays["state.0", "conv.x"].bytes_at[0, 0, 0, 1, 0] == tap
    assert image.arrays["state.0", "conv.b"].bytes_at[0, 0, 0, 0, 0] == second_section


@pytest.mark.parametrize(
    ("units", "tp", "held"),
    [(8, 4, [[0, 1], [2, 3], [4, 5], [6, 7]]), (2, 4, [[0], [0], [1], [1]]), (0, 2, [[0, 1], [0, 1]])],
    ids=["split", "replicated", "whole"],
)
def test_a_tensor_rank_holds_its_share(units: int, tp: int, held: list[list[int]]) -> None:
    axis = Axis("head", units or 2, units)
    assert [tensor_share(axis, ParallelConfig(tp), rank).tolist() for rank in range(tp)] == held


@pytest.mark.parametrize(("units", "tp"), [(3, 2), (2, 3)])
def test_sizes_that_fit_no_engine_have_no_image(units: int, tp: int) -> None:
    with pytest.raises(ValueError, match="reshape"):
        tensor_share(Axis("head", units, units), ParallelConfig(tp), 0)


def test_surplus_layers_go_to_the_stages_before_the_last() -> None:
    assert np.bincount(stage_of_layers(ParallelConfig(pp=4), 10)).tolist() == [2, 3, 3, 2]
