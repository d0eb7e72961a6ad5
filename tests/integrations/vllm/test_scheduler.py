"""Our scheduler role in vLLM's scheduler: it never waits, tells what it did, and refuses what it cannot do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.scheduler import refuse_replay
from kvweave.transport.memory import MemoryNetwork
from tests.integrations.vllm.engines import Engine
from tests.integrations.vllm.layers import Side
from tests.integrations.vllm.pairs import whole_of
from tests.integrations.vllm.scheduling import (
    FULL,
    Instance,
    RequestStatus,
    Two,
    check_settled,
    prompt_of,
    stalled,
    two_instances,
)
from tests.runtime.pair import wait_until


def test_a_step_never_waits_for_a_transfer(config_folder: Path) -> None:
    with stalled(config_folder) as two:
        two.transfer(prompt_of(50), name="stalled")
        two.decode.step()
        other = two.decode.request("other", prompt_of(20), 5)
        for _ in range(5):
            two.decode.step()
        assert other.is_finished()
        assert two.decode.reported("loaded") == []


def test_what_was_done_is_in_the_statistics(two: Two) -> None:
    request = two.transfer(prompt_of(50))
    two.decode.run_until(request.is_finished)
    two.settle()
    data = two.decode.stats.data
    assert len(data["transfer_seconds"]) == len(data["bytes"]) == 1
    assert data["bytes"] == [49 * 2 * 4 * 2 * 32 * 2]
    assert data["counts"] == {"handshakes": 1}
    counts = two.prefill.stats.data["counts"]
    assert counts == {"offers": 1, "handshakes": 1, "released:acknowledged": 1}


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_the_settings_reach_the_engines(config_folder: Path, role: str) -> None:
    engine = Engine(Side(1), FULL, whole_of(dict(FULL)))
    extra = {"kv_lease_duration": 9, "peers": ["10.0.0.0/8"]}
    made = Instance(role, engine, MemoryNetwork(), config_folder, extra=extra)
    (opened,) = made.connector._scheduler._engines
    made.close()
    assert opened.layout.model.name == str(config_folder)
    if role == "kv_producer":
        assert opened._coordinator._side.offers.lease_seconds == 9
    else:
        assert opened.peers.allows("10.1.2.3")


def test_an_engine_of_both_roles_serves_both_ways(config_folder: Path) -> None:
    network, whole = MemoryNetwork(), whole_of(dict(FULL))
    engines = [Instance("kv_both", Engine(Side(tp), FULL, whole), network, config_folder) for tp in (1, 2)]
    for source, target in (engines, engines[::-1]):
        two = Two(source, target)
        name = f"from {source.engine.side.tp}"
        request = two.transfer(prompt_of(50, seed=source.engine.side.tp), name=name)
        target.run_until(lambda target=target, name=name: name in target.reported("loaded"))
        assert target.wrong_bytes(name, 0, 49) == 0
        target.run_until(request.is_finished)
        two.settle()
    for engine in engines:
        engine.close()


def test_a_pair_of_other_weights_is_refused_and_each_mismatch_named(
    config_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"extra": {"fingerprint": "base"}}
    with two_instances(config_folder, prefill_options=options, extra={"fingerprint": "tuned"}) as two:
        request = two.transfer(prompt_of(50))
        two.decode.run_until(request.is_finished)
        assert request.status == RequestStatus.FINISHED_ERROR
        assert two.decode.stats.data["counts"]["failed:incompatible"] == 1
        wait_until(lambda: "finds us incompatible" in caplog.text)
    for side in ("prefill engine at", "finds us incompatible"):
        told = [record.getMessage() for record in caplog.records if side in record.getMessage()]
        assert "(base)" in told[0]
        assert "(tuned)" in told[0]


def test_a_dead_prefill_engine_fails_its_requests_alone(config_folder: Path) -> None:
    with two_instances(config_folder, policy="recompute") as two:
        params = two.prefill.offer("prompt", prompt_of(50))
        two.prefill.close()
        request = two.decode.request("wanted", prompt_of(50), 2, params=params)
        other = two.decode.request("other", prompt_of(20, seed=3), 2)
        two.decode.run_until(other.is_finished)
        assert not request.is_finished()


def test_few_missing_tokens_are_computed_here(config_folder: Path) -> None:
    with two_instances(config_folder, extra={"kv_recompute_threshold": 64}) as two:
        few, many = two.transfer(prompt_of(64), name="few"), two.transfer(prompt_of(65, seed=4), name="many")
        two.decode.run_until(lambda: few.is_finished() and many.is_finished())
        assert two.decode.reported("loaded") == ["many"]
        check_settled(two, two.decode.engine.side.num_blocks - 1)


def test_a_model_whose_window_is_replayed_is_refused() -> None:
    group = SimpleNamespace(kv_cache_spec=SimpleNamespace(prefix_replay_tokens=128))
    with pytest.raises(ConfigurationError, match="cache group 0: vLLM replays its last 128 tokens"):
        refuse_replay(SimpleNamespace(kv_cache_groups=[group]))
