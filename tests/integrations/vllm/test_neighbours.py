"""In a MultiConnector with vLLM's own OffloadingConnector: each loads what it has, and neither spoils the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integrations.vllm.layers import Side
from tests.integrations.vllm.offloading import HostStore
from tests.integrations.vllm.scheduling import Two, prompt_of, two_instances

OFFLOADING = {
    "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 24},
}  # fmt: skip
BESIDE: dict[str, Any] = {"prefill_options": {"beside": [OFFLOADING]}, "beside": [OFFLOADING]}


def offloading(two: Two) -> HostStore:
    """Both instances offload; the decode instance's store."""
    stores = [HostStore(instance.engine.tensors[0]) for instance in (two.prefill, two.decode)]
    two.prefill.store, two.decode.store = stores
    return stores[1]


def push_out(two: Two) -> None:
    """Takes every free block of the decode instance for other prompts."""
    for seed in range(20, 26):
        request = two.decode.request(f"other {seed}", prompt_of(300, seed=seed))
        two.decode.run_until(request.is_finished)


def test_what_was_transferred_is_offloaded_and_comes_back(config_folder: Path) -> None:
    with two_instances(config_folder, prefill=Side(1), **BESIDE) as two:
        store = offloading(two)
        request = two.transfer(prompt_of(200))
        two.decode.run_until(request.is_finished)
        assert two.decode.reported("loaded") == ["wanted"]
        push_out(two)
        again = two.decode.request("again", prompt_of(200), 2)
        two.decode.run_until(lambda: again.num_computed_tokens >= 199)
        assert "again" in store.loaded
        assert two.decode.wrong_bytes("again", 0, 199) == 0
        two.decode.run_until(again.is_finished)
        two.settle()


def test_a_load_waits_for_the_step_that_offloads_what_its_blocks_held(config_folder: Path) -> None:
    """vLLM offloads a step later, and does not look at blocks that another connector's load has taken since."""
    small = Side(1, num_blocks=16)
    with two_instances(config_folder, prefill=Side(1), decode=small, **BESIDE) as two:
        store = offloading(two)
        params = two.prefill.offer("prefill", prompt_of(150))
        kept = two.decode.request("kept", prompt_of(200, seed=2))
        two.decode.run_until(kept.is_finished)
        wanted = two.decode.request("wanted", prompt_of(150), 2, params=params)
        two.decode.run_until(wanted.is_finished)
        assert [len(finished.zeroed) for finished in two.decode.metadata if finished.zeroed] == [1]
        again = two.decode.request("again", prompt_of(200, seed=2), 2)
        two.decode.run_until(lambda: again.num_computed_tokens >= 199)
        assert "again" in store.loaded
        assert two.decode.wrong_bytes("again", 0, 199) == 0
        two.decode.run_until(again.is_finished)
        two.settle()
