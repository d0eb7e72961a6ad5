"""Blocks with holes stay out of vLLM's prefix cache."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.vllm.layers import Side
from tests.integrations.vllm.scheduling import (
    MIXED,
    WINDOW,
    prompt_of,
    two_instances,
)


def test_a_window_block_with_a_hole_is_never_a_cached_prefix(config_folder: Path) -> None:
    with two_instances(config_folder, MIXED, decode=Side(1, block_size=64)) as two:
        first = two.transfer(prompt_of(150), name="first")
        two.decode.run_until(first.is_finished)
        second = two.transfer(prompt_of(128) + prompt_of(30, seed=9), name="second")
        two.decode.run_until(lambda: "second" in two.decode.reported("loaded"))
        assert second.prefill_stats.num_local_cached_tokens == 0
        assert two.decode.wrong_bytes("second", 157 - WINDOW + 1, 157) == 0
