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
    RequestStatus,
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

    def offered_parts(self) -> int:
        """How many parts the prefill engine has offered."""
        return int(self.two.prefill.connector._scheduler._engines[0].metrics().total("offered_parts"))


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


def test_chunks_are_offered_before_the_prompt_is_computed(config_folder: Path) -> None:
    with two_instances(config_folder, prefill_options={"budget": CHUNK}) as two:
        followed = Followed(two, prompt_of(150))
        offered = []
        while not followed.prefilled.is_finished():
            offered.append(followed.offered_parts())
            two.prefill.step()
        two.prefill.run_until(lambda: followed.offered_parts() == 4)
        assert offered[-1] >= 1
        two.decode.run_until(followed.request.is_finished)
        check_settled(two, two.decode.engine.side.num_blocks - 1)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_preempted_prompt_is_loaded_from_its_new_blocks(config_folder: Path, steps: int) -> None:
    with two_instances(config_folder, prefill_options={"budget": CHUNK, "prefix_caching": False}) as two:
        followed = Followed(two, prompt_of(150))
        for _ in range(steps):
            two.prefill.step()
            two.decode.step()
        scheduler, request = two.prefill.scheduler, followed.prefilled
        scheduler.running.remove(request)
        scheduler._preempt_request(request, 0.0)
        while not request.is_finished():
            two.prefill.step()
            two.decode.step()
        two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
        assert two.decode.wrong_bytes("wanted", 0, 149) == 0
        two.decode.run_until(followed.request.is_finished)
        check_settled(two, two.decode.engine.side.num_blocks - 1)


def test_another_prompt_under_the_same_id_loads_nothing(config_folder: Path) -> None:
    with two_instances(config_folder, policy="recompute", prefill_options={"budget": CHUNK}) as two:
        followed = Followed(two, prompt_of(150), asked=prompt_of(150, seed=9))
        followed.run()
        assert two.decode.reported("loaded") == []
        check_settled(two, two.decode.engine.side.num_blocks - 1)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_at_the_decode_engine_frees_both_sides(config_folder: Path, steps: int) -> None:
    with two_instances(config_folder, prefill_options={"budget": CHUNK}) as two:
        followed = Followed(two, prompt_of(150))
        for _ in range(steps):
            two.prefill.step()
            two.decode.step()
        two.decode.scheduler.finish_requests("wanted", RequestStatus.FINISHED_ABORTED)
        two.prefill.run_until(followed.prefilled.is_finished)
        check_settled(two, two.decode.engine.side.num_blocks - 1)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_at_the_prefill_engine_is_recomputed_at_the_decode_engine(config_folder: Path, steps: int) -> None:
    with two_instances(config_folder, policy="recompute", prefill_options={"budget": CHUNK}) as two:
        followed = Followed(two, prompt_of(150))
        for _ in range(steps):
            two.prefill.step()
            two.decode.step()
        two.prefill.scheduler.finish_requests("wanted-prefill", RequestStatus.FINISHED_ABORTED)
        two.decode.run_until(followed.request.is_finished)
        check_settled(two, two.decode.engine.side.num_blocks - 1)


def test_without_a_follower_the_prompt_is_offered_as_always(two: Two) -> None:
    ours = {"transfer_id": new_transfer_id()}
    params = {"do_remote_decode": True, "kvweave": ours}
    request = two.prefill.request("prompt", prompt_of(50), params=params)
    while not request.is_finished():
        two.prefill.step()
    answer = two.prefill.answers()["prompt"]
    loaded = two.decode.request("wanted", prompt_of(50), 2, params=answer)
    two.decode.run_until(loaded.is_finished)
    assert two.decode.reported("loaded") == ["wanted"]
    check_settled(two, two.decode.engine.side.num_blocks - 1)


@pytest.mark.parametrize("ours", [{"transfer_id": "short"}, {"transfer_id": 7}, "no dictionary"])
def test_what_is_no_transfer_id_changes_nothing(two: Two, ours: object) -> None:
    request = two.prefill.request("prompt", prompt_of(50), params={"do_remote_decode": True, "kvweave": ours})
    while not request.is_finished():
        two.prefill.step()
    assert two.prefill.answers()["prompt"]["do_remote_prefill"]


def test_a_peer_that_is_not_allowed_is_not_asked(two: Two) -> None:
    ours = {"transfer_id": new_transfer_id(), "peer": "192.0.2.7:5600"}
    request = two.decode.request("wanted", prompt_of(50), 2, params={"do_remote_prefill": True, "kvweave": ours})
    two.decode.run_until(request.is_finished)
    assert two.decode.reported("loaded") == []
