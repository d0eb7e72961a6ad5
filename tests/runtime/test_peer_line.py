"""The line that a log shows of a pair."""

from __future__ import annotations

import pytest

import kvweave as kw
from kvweave.runtime.peer_line import describe_peer
from tests.runtime.memory import ATTENTION, LATENT


def layout(model: object, tp: int, block_size: int) -> kw.EngineLayout:
    cache = kw.CacheConfig(block_size=block_size, num_blocks=4)
    return kw.EngineLayout.build(model, kw.ParallelConfig(tp=tp), cache)


@pytest.mark.parametrize(("model", "heads"), [(ATTENTION, 4), (LATENT, 1)], ids=["attention", "latent"])
def test_it_names_both_shapes(model: object, heads: int) -> None:
    line = describe_peer("decode", layout(model, 2, 16), "prefill", layout(model, 4, 8))
    wanted = f"local=decode, remote=prefill, num_kv_heads={heads}, local_tp=2, remote_tp=4, local_rank=0"
    assert wanted in line
    assert "local_block_size=16, remote_block_size=8" in line
    assert "\n" not in line


def test_a_model_of_states_alone_has_a_line_too() -> None:
    line = describe_peer(
        "decode",
        layout(kw.models.load("mamba-130m-hf"), 1, 16),
        "prefill",
        layout(kw.models.load("mamba-130m-hf"), 1, 8),
    )
    assert "remote_tp=1" in line
