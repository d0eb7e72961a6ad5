"""Prompts that are offered while vLLM's scheduler prefills them: what may be offered when, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kvweave.runtime import new_transfer_id
from tests.integrations.vllm.layers import Layer
from tests.integrations.vllm.scheduling import (
    FULL,
    MIXED,
    Two,
    check_settled,
    prompt_of,
    two_instances,
)

CHUNK = 32


class Followed:
    """One prompt at both instances at once."""

    def __init__(self, two: Two, prompt: list[int], asked: list[int] | None = None) -> None:
        self.two = two
        ours = {"transfer_id": new_transfer_id()}
        params = {"do_remote_decode": True, "kvweave": ours}
        self.prefilled = two.prefill.request("wanted-prefill", prompt, params=params)
        engine = two.prefill.connector._scheduler._engines[0]
        params = {"do_remote_prefill": True, "kvweave": ours | {"peer": engine.address}}
        self.request = two.decode.request("wanted", asked or prompt, 2, params=params)

    def run(self) -> None:
        """Both instances in turn, until the answer is there."""
        while not self.request.is_finished():
            self.two.prefill.step()
            self.two.decode.step()

    def early_parts(self) -> int:
        """How many parts the prefill engine has offered."""
        return int(self.two.prefill.connector._scheduler._engines[0].metrics().counts["offered_parts"])


@pytest.mark.parametrize("model", [FULL, MIXED], ids=["full", "full and windows"])
def test_a_prompt_is_loaded_while_it_is_prefilled(config_folder: Path, model: Mapping[str, Layer]) -> None:
    with two_instances(config_folder, model, prefill_options={"budget": CHUNK}) as two:
        followed = Followed(two, prompt_of(150))
        two.decode.step()
        while not followed.prefilled.is_finished():
            two.prefill.step()
            two.decode.step()
        two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
        assert two.decode.wrong_bytes("wanted", 120 if model is MIXED else 0, 149) == 0
        two.decode.run_until(followed.request.is_finished)
        assert two.decode.prefilled["wanted"].num_external_cached_tokens == 149
        check_settled(two, two.decode.engine.side.num_blocks - 1)
        assert two.prefill.reported("released") == ["wanted-prefill"]
