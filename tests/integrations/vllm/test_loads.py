"""Loads in vLLM's scheduler: each offer once, each request reported once, whatever happens to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.vllm.layers import Side
from tests.integrations.vllm.scheduling import (
    RequestStatus,
    Two,
    check_settled,
    prompt_of,
    stalled,
    two_instances,
)


def test_a_request_is_loaded_then_computed_from_its_last_token_on(two: Two) -> None:
    free = two.decode.free_blocks
    request = two.transfer(prompt_of(50))
    two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
    assert two.decode.wrong_bytes("wanted", 0, 49) == 0
    two.decode.run_until(lambda: request.num_output_tokens > 0)
    assert two.decode.prefilled["wanted"].num_external_cached_tokens == 49
    check_settled(two, free)
    assert two.prefill.reported("released") == ["wanted-prefill"]


def test_a_prefix_that_is_here_already_is_not_loaded(two: Two) -> None:
    first = two.transfer(prompt_of(40), name="first")
    two.decode.run_until(first.is_finished)
    second = two.transfer(prompt_of(40)[:32] + prompt_of(40, seed=5), name="second")
    two.decode.run_until(lambda: "second" in two.decode.reported("loaded"))
    assert two.decode.wrong_bytes("second", 0, 71) == 0
    assert second.prefill_stats.num_local_cached_tokens == 32
    assert second.prefill_stats.num_external_cached_tokens == 71 - 32


def test_nothing_missing_means_that_the_offer_is_only_given_back(two: Two) -> None:
    first = two.transfer(prompt_of(49), name="first")
    two.decode.run_until(first.is_finished)
    second = two.transfer(prompt_of(49), name="second")
    two.decode.run_until(second.is_finished)
    check_settled(two, two.decode.engine.side.num_blocks - 1)
    assert two.decode.reported("loaded") == ["first"]
    assert two.prefill.reported("released") == ["first-prefill", "second-prefill"]


def test_two_samples_of_one_prompt_load_it_once(two: Two) -> None:
    params = two.prefill.offer("prompt", prompt_of(50))
    requests = [two.decode.request(f"{number}_sample", prompt_of(50), 2, params=dict(params)) for number in range(2)]
    two.decode.run_until(lambda: all(request.is_finished() for request in requests))
    assert two.decode.reported("loaded") == ["0_sample"]
    assert two.decode.prefilled["1_sample"].num_local_cached_tokens == 48
    check_settled(two, two.decode.engine.side.num_blocks - 1)


def test_a_resent_request_is_computed_here(two: Two) -> None:
    params = two.prefill.offer("prompt", prompt_of(50))
    for name in ("first", "again"):
        request = two.decode.request(name, prompt_of(50), 2, params=dict(params))
        two.decode.run_until(lambda request=request: request.is_finished())
        assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED
    assert two.decode.reported("loaded") == ["first"]
    assert two.decode.reported("failed") == []


def test_prompt_log_probabilities_load_nothing_and_release_the_offer(two: Two) -> None:
    params = two.prefill.offer("prompt", prompt_of(50), prompt_logprobs=1)
    request = two.decode.request("wanted", prompt_of(50), 2, params=params, prompt_logprobs=1)
    two.decode.run_until(request.is_finished)
    assert two.decode.reported("loaded") == []
    check_settled(two, two.decode.engine.side.num_blocks - 1)


def test_abort_before_it_is_scheduled_releases_the_offer(two: Two) -> None:
    free = two.decode.free_blocks
    two.transfer(prompt_of(50))
    two.decode.scheduler.finish_requests("wanted", RequestStatus.FINISHED_ABORTED)
    check_settled(two, free)


def test_abort_during_the_load_frees_the_blocks_once(config_folder: Path) -> None:
    with stalled(config_folder) as two:
        free = two.decode.free_blocks
        two.transfer(prompt_of(50))
        two.decode.step()
        assert two.decode.free_blocks == free - 4
        two.decode.scheduler.finish_requests("wanted", RequestStatus.FINISHED_ABORTED)
        check_settled(two, free)


def test_abort_after_the_load_frees_the_blocks_once(two: Two) -> None:
    free = two.decode.free_blocks
    two.transfer(prompt_of(50))
    two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
    two.decode.scheduler.finish_requests("wanted", RequestStatus.FINISHED_ABORTED)
    check_settled(two, free)
    assert two.decode.reported("loaded") == ["wanted"]


@pytest.mark.parametrize(
    ("policy", "status"),
    [("fail", RequestStatus.FINISHED_ERROR), ("recompute", RequestStatus.FINISHED_LENGTH_CAPPED)],
)
def test_a_failed_load_follows_the_policy(config_folder: Path, policy: str, status: RequestStatus) -> None:
    with two_instances(config_folder, policy=policy) as two:
        free = two.decode.free_blocks
        params = two.prefill.offer("prompt", prompt_of(50))
        params["kvweave"] = {**params["kvweave"], "generation": 1}
        request = two.decode.request("wanted", prompt_of(50), 2, params=params)
        two.decode.run_until(request.is_finished)
        assert request.status == status
        assert two.decode.reported("failed") == ["wanted"]
        two.decode.run_until(lambda: not two.decode.scheduler.has_requests())
        assert two.decode.free_blocks == free


@pytest.mark.parametrize("change", [{"remote_port": "x"}, {"kvweave": None}, {"remote_host": "example.org"}])
def test_a_malformed_reference_is_computed_here(two: Two, change: dict[str, Any]) -> None:
    params = two.prefill.offer("prompt", prompt_of(50)) | change
    request = two.decode.request("wanted", prompt_of(50), 2, params=params)
    two.decode.run_until(request.is_finished)
    assert two.decode.reported("loaded") == []
    assert two.decode.stats.data["counts"]["failed:wrong_reference"] == 1


@pytest.mark.parametrize("prompt", [prompt_of(30), prompt_of(80, seed=2)], ids=["shorter", "longer"])
def test_another_prompts_offer_is_never_loaded(two: Two, prompt: list[int]) -> None:
    params = two.prefill.offer("other", prompt_of(50))
    request = two.decode.request("wanted", prompt, 2, params=params)
    two.decode.run_until(request.is_finished)
    assert two.decode.reported("loaded") == []
    assert two.decode.stats.data["counts"] == {"failed:wrong_reference": 1}


def test_a_preempted_request_is_loaded_once(config_folder: Path) -> None:
    with two_instances(config_folder, decode=Side(1, num_blocks=9)) as two:
        requests = [two.transfer(prompt_of(50, seed), 30, name) for seed, name in ((1, "first"), (2, "second"))]
        two.decode.run_until(lambda: all(request.is_finished() for request in requests))
        assert max(request.num_preemptions for request in requests) > 0
        assert sorted(two.decode.reported("loaded")) == ["first", "second"]
        check_settled(two, 8)
