"""What is refused at start: by name, with reason and remedy, and everything that is wrong at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm import CONNECTOR
from kvweave.integrations.vllm.support import (
    CACHELESS_DRAFTERS,
    COMPUTED_REQUESTS,
    REFUSED_METHODS,
    REFUSED_NEIGHBOURS,
    REFUSED_OPTIONS,
    REFUSED_SETTINGS,
    has_neighbours,
    refuse_unsupported,
)


def config(beside: tuple[str, ...] = (), **changes: Any) -> Any:
    """A configuration without anything that is refused, but for ``changes``."""
    extra = dict(changes.pop("extra", {}))
    if beside:
        extra["connectors"] = [{"kv_connector": name} for name in (CONNECTOR, *beside)]
    values: dict[str, Any] = {
        "runner_type": "generate", "is_encoder_decoder": False, "is_diffusion": False, "enable_sleep_mode": False,
        "multimodal_config": None, "weight_transfer_config": None, "nnodes_within_dp": 1,
        "prefill_context_parallel_size": 1, "decode_context_parallel_size": 1, "enable_prefix_caching": True,
        "method": None,
    }  # fmt: skip
    found = SimpleNamespace(**values | changes)
    return SimpleNamespace(
        model_config=found, parallel_config=found, cache_config=found,
        weight_transfer_config=found.weight_transfer_config, speculative_config=found if found.method else None,
        kv_transfer_config=KVTransferConfig(kv_connector="X", kv_role="kv_both", kv_connector_extra_config=extra),
    )  # fmt: skip


def refused(changed: Any, engine: Any = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        refuse_unsupported(changed, engine)
    return str(caught.value)


UNCACHED_MEDIA: dict[str, Any] = {
    "multimodal_config": SimpleNamespace(mm_processor_cache_gb=0),
    "enable_prefix_caching": False,
}
CHANGES: dict[str, dict[str, Any]] = {
    "--runner pooling": {"runner_type": "pooling"},
    "encoder-decoder model": {"is_encoder_decoder": True},
    "diffusion model": {"is_diffusion": True},
    "--enable-sleep-mode": {"enable_sleep_mode": True},
    "--weight-transfer-config": {"weight_transfer_config": {"backend": "nccl"}},
    "--mm-processor-cache-gb 0 with --no-enable-prefix-caching": UNCACHED_MEDIA,
    "--nnodes": {"nnodes_within_dp": 2},
    "--prefill-context-parallel-size": {"prefill_context_parallel_size": 2},
    **{f"--speculative-config method {method}": {"method": method} for method in REFUSED_METHODS},
}


def test_a_plain_configuration_is_fine() -> None:
    refuse_unsupported(config(), None)
    refuse_unsupported(config(), SimpleNamespace(kv_transfer_config=None))


@pytest.mark.parametrize("refusal", REFUSED_OPTIONS, ids=lambda refusal: refusal.name)
def test_an_option_is_refused_by_name(refusal: Any) -> None:
    assert refused(config(**CHANGES[refusal.name])) == f"{refusal.name}: {refusal.reason}; {refusal.remedy}"


@pytest.mark.parametrize("method", [*sorted(CACHELESS_DRAFTERS), "draft_model", "eagle3", "mtp"])
def test_other_methods_of_speculation_are_not(method: str) -> None:
    refuse_unsupported(config(method=method), None)


def test_media_are_named_by_content_while_one_cache_is_on() -> None:
    refuse_unsupported(config(**UNCACHED_MEDIA | {"enable_prefix_caching": True}), None)


@pytest.mark.parametrize("key", REFUSED_SETTINGS)
def test_a_setting_is_refused_by_name(key: str) -> None:
    assert refused(config(extra={key: True})).startswith(f"kv_connector_extra_config.{key}: True: ")


@pytest.mark.parametrize("name", REFUSED_NEIGHBOURS)
def test_a_neighbour_is_refused_by_name(name: str) -> None:
    assert refused(config(), config((name,))).startswith(f"MultiConnector: {name} stands beside KVWeaveConnector: ")


def test_a_second_one_of_ours_is_refused() -> None:
    assert "stands beside another KVWeaveConnector" in refused(config(), config((CONNECTOR,)))


@pytest.mark.parametrize("name", ["OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1"])
def test_other_connectors_may_stand_beside_it(name: str) -> None:
    refuse_unsupported(config(), config((name,)))


def test_the_whole_must_have_the_role_of_its_part() -> None:
    """vLLM asks the whole whether it must hold freed blocks back for a consumer."""
    whole = config(("OffloadingConnector",))
    whole.kv_transfer_config.kv_role = "kv_producer"
    assert "its kv_role is kv_producer, that of KVWeaveConnector in it kv_both; give" in refused(config(), whole)


def test_neighbours_are_seen_in_the_whole_configuration_alone() -> None:
    assert has_neighbours(config(("OffloadingConnector",)))
    assert not has_neighbours(config(()))
    assert not has_neighbours(None)


def test_everything_is_said_at_once() -> None:
    wrong = config(("NixlConnector",), enable_sleep_mode=True, nnodes_within_dp=2, extra={"transfer_mode": "write"})
    lines = refused(wrong, wrong).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "--enable-sleep-mode", "--nnodes", "kv_connector_extra_config.transfer_mode", "MultiConnector",
    ]  # fmt: skip


def test_names_are_those_of_vllm() -> None:
    assert set(REFUSED_NEIGHBOURS) <= set(KVConnectorFactory._registry)
    assert all(reason for reason in COMPUTED_REQUESTS.values())
