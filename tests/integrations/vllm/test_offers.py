"""Offers in vLLM's scheduler: what of a prompt is handed over, and by which of several samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvweave.integrations.vllm.params import nothing_offered
from tests.integrations.vllm.scheduling import (
    MIXED,
    WINDOW,
    RequestStatus,
    Two,
    check_settled,
    prompt_of,
    two_instances,
)


def test_a_prompt_of_one_token_is_not_offered(two: Two) -> None:
    assert two.prefill.offer("short", prompt_of(1)) == nothing_offered()
    check_settled(two, two.decode.free_blocks)


def test_a_chunked_prefill_is_offered_whole(config_folder: Path) -> None:
    with two_instances(config_folder, prefill_options={"budget": 32}) as two:
        two.transfer(prompt_of(100))
        two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
        assert two.decode.wrong_bytes("wanted", 0, 99) == 0


def test_several_samples_at_the_prefill_engine_keep_one_offer(two: Two) -> None:
    prompts = [two.prefill.request(f"{n}_parent", prompt_of(50), params={"do_remote_decode": True}) for n in range(3)]
    two.prefill.run_until(lambda: all(request.is_finished() for request in prompts))
    two.prefill.run_until(lambda: len(two.prefill.reported("released")) == 2)
    assert len(two.prefill.scheduler.requests) == 1


def test_abort_at_the_prefill_engine_offers_nothing(two: Two) -> None:
    request = two.prefill.request("gone", prompt_of(50), params={"do_remote_decode": True})
    two.prefill.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    assert request.is_finished()
    check_settled(two, two.decode.free_blocks)


@pytest.mark.parametrize("length", [142, 143, 144], ids=["before a block edge", "at a block edge", "behind it"])
def test_a_window_is_offered_before_it_moves_on(config_folder: Path, length: int) -> None:
    with two_instances(config_folder, MIXED) as two:
        request = two.transfer(prompt_of(length))
        two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
        assert two.decode.wrong_bytes("wanted", length - WINDOW, length - 1) == 0
        two.decode.run_until(request.is_finished)
        check_settled(two, two.decode.engine.side.num_blocks - 1)


def test_a_prefill_engine_with_windows_computes_one_token_less(config_folder: Path) -> None:
    with two_instances(config_folder, MIXED) as two:
        prompt = two.prefill.request("prompt", prompt_of(50), 9, params={"do_remote_decode": True})
        two.prefill.run_until(prompt.is_finished)
        assert (prompt.num_prompt_tokens, prompt.num_output_tokens) == (49, 1)
        assert two.prefill.answers()["prompt"]["remote_num_tokens"] == 49


@pytest.mark.parametrize("length", [1, 2], ids=["nothing to cut", "one token left"])
def test_short_prompts_of_a_model_with_windows(config_folder: Path, length: int) -> None:
    with two_instances(config_folder, MIXED) as two:
        params = two.prefill.offer("prompt", prompt_of(length))
        assert params.get("remote_num_tokens") == (None, 1)[length - 1]


def test_prompt_log_probabilities_of_a_model_with_windows_offer_nothing(config_folder: Path) -> None:
    with two_instances(config_folder, MIXED) as two:
        assert two.prefill.offer("prompt", prompt_of(50), prompt_logprobs=1) == nothing_offered()


def test_a_client_cannot_say_that_a_prompt_was_cut(config_folder: Path) -> None:
    with two_instances(config_folder, MIXED) as two:
        params = {"do_remote_decode": True, "kvweave_cut": True}
        request = two.prefill.request("prompt", prompt_of(50), params=params)
        two.prefill.run_until(request.is_finished)
        assert two.prefill.answers()["prompt"]["remote_num_tokens"] == 49
