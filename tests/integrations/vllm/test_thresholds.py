"""``kv_recompute_threshold`` cuts where vLLM's NixlConnector cuts: both are asked about the same missing tokens.

NixlConnector asks it where a prefill engine may read a decode engine's blocks, this connector where a decode engine may
read a prefill engine's; what it compares, and how, is the same.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

from tests.integrations.vllm.scheduling import Two, prompt_of, two_instances

THRESHOLD = 64


def nixl_loads(two: Two, missing: int) -> int:
    """How many tokens vLLM's connector loads of as many missing ones."""
    config = two.decode.vllm_config
    scheduler = NixlPullConnectorScheduler(config, "engine", two.decode.engine.configs[0])
    params = {
        "do_remote_decode": True, "remote_block_ids": [[1]], "remote_engine_id": "e", "remote_request_id": "r",
        "remote_host": "h", "remote_port": 1, "remote_num_tokens": missing,
    }  # fmt: skip
    request = SimpleNamespace(kv_transfer_params=params, num_prompt_tokens=missing + 1, request_id="r")
    return int(scheduler.get_num_new_matched_tokens(request, 0)[0])


@pytest.mark.parametrize("threshold", [0, THRESHOLD])
@pytest.mark.parametrize("missing", [1, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1])
def test_both_load_or_compute_the_same(config_folder: Path, missing: int, threshold: int) -> None:
    with two_instances(config_folder, extra={"kv_recompute_threshold": threshold}) as two:
        request = two.transfer(prompt_of(missing + 1))
        two.decode.run_until(request.is_finished)
        loaded = "wanted" in two.decode.reported("loaded")
        assert loaded == (nixl_loads(two, missing) == missing)
