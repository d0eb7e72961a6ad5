"""The class that vLLM loads: found by both ways, faithful to its role, at home beside others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, supports_hma
from vllm.v1.outputs import KVConnectorOutput

import kvweave.integrations.vllm as package
from kvweave.errors import ConfigurationError, LocalProtocolError
from kvweave.integrations.vllm.connector import KVWeaveConnector, _join_logging
from kvweave.integrations.vllm.stats import KVWeaveStats
from tests.integrations.vllm.scheduling import Two, prompt_of, two_instances
from tests.runtime.pair import wait_until


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))


def transfer_config(**changes: Any) -> Any:
    return KVTransferConfig(kv_connector="KVWeaveConnector", kv_role="kv_both", **changes)


def test_found_by_its_module_and_by_its_name_from_then_on(by_name: None) -> None:
    config = transfer_config(kv_connector_module_path="kvweave.integrations.vllm")
    KVConnectorFactory._registry.pop("KVWeaveConnector", None)
    assert KVConnectorFactory.get_connector_class(config) is KVWeaveConnector
    assert KVConnectorFactory.get_connector_class_by_name("KVWeaveConnector") is KVWeaveConnector


def test_found_by_its_name_once_the_plugin_has_run(by_name: None) -> None:
    package.register()
    package.register()
    assert KVConnectorFactory.get_connector_class(transfer_config()) is KVWeaveConnector


def test_the_package_has_nothing_else_to_offer() -> None:
    with pytest.raises(AttributeError, match="no attribute 'OtherConnector'"):
        package.OtherConnector  # noqa: B018


def test_an_option_that_replaces_it_is_named() -> None:
    with pytest.raises(AttributeError, match="--kv-offloading-size replaces kv_connector"):
        package.OffloadingConnector  # noqa: B018


def test_it_needs_no_layout_and_no_single_kind_of_cache() -> None:
    assert supports_hma(KVWeaveConnector)
    assert KVWeaveConnector.get_required_kvcache_layout(None) is None


def test_each_role_answers_for_itself_alone(two: Two) -> None:
    scheduler = two.decode.connector
    worker = KVWeaveConnector(two.decode.vllm_config, KVConnectorRole.WORKER, two.decode.engine.configs[0])
    with pytest.raises(LocalProtocolError, match="what only a worker's knows"):
        scheduler.get_handshake_metadata()
    with pytest.raises(LocalProtocolError, match="what only a scheduler's knows"):
        worker.on_new_request(None)
    assert worker.get_kv_connector_stats() is None
    worker.shutdown()


def test_a_worker_reports_what_a_step_tells_it(two: Two) -> None:
    worker = KVWeaveConnector(two.prefill.vllm_config, KVConnectorRole.WORKER, two.prefill.engine.configs[0])
    request = two.transfer(prompt_of(30))
    two.decode.run_until(request.is_finished)
    two.settle()
    for finished in two.prefill.metadata:
        worker.bind_connector_metadata(finished)
        worker.start_load_kv(None)
    assert worker.get_transfer_results(set()).finished_sending == {"wanted-prefill"}
    assert worker.build_connector_worker_meta() is None


def test_what_has_been_loaded_by_the_end_of_a_step_is_reported_with_it_once(two: Two) -> None:
    two.transfer(prompt_of(30))
    assert two.decode.scheduler.schedule().kv_connector_metadata.watched
    reports = [KVConnectorOutput() for _ in range(2)]
    wait_until(lambda: two.decode.connector.update_connector_output(reports[0]) or reports[0].finished_recving)
    two.decode.connector.update_connector_output(reports[1])
    assert [report.finished_recving for report in reports] == [{"wanted"}, None]


def test_another_connectors_handshake_data_is_refused(two: Two) -> None:
    with pytest.raises(ConfigurationError, match="name KVWeaveConnector first among the connectors"):
        two.decode.connector.set_xfer_handshake_metadata({0: object()})


def test_statistics_are_rebuilt_from_their_data() -> None:
    assert isinstance(KVWeaveConnector.build_kv_connector_stats(), KVWeaveStats)
    data = KVWeaveStats().data | {"bytes": [3]}
    assert KVWeaveConnector.build_kv_connector_stats(data).data == data


def test_an_unknown_vllm_is_refused(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.99.0")
    with pytest.raises(ConfigurationError, match=r"vllm: version 0\.99\.0"):
        KVWeaveConnector(two.decode.vllm_config, KVConnectorRole.WORKER, two.decode.engine.configs[0])


def test_log_lines_go_where_vllm_writes_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    ours, theirs = logging.getLogger("kvweave"), logging.getLogger("vllm")
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(theirs, "handlers", [handler])
    _join_logging()
    assert ours.handlers == [handler]
    ours.warning("told")
    handler.close()
    assert (tmp_path / "log").read_text() == "told\n"


def test_it_loads_beside_an_offloading_connector(config_folder: Path) -> None:
    beside = {
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20},
    }  # fmt: skip
    with two_instances(config_folder, prefill_options={"beside": [beside]}, beside=[beside]) as two:
        request = two.transfer(prompt_of(50))
        two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))
        assert two.decode.wrong_bytes("wanted", 0, 49) == 0
        two.decode.run_until(request.is_finished)
        two.prefill.run_until(lambda: two.prefill.reported("released") == ["wanted-prefill"])
        assert two.decode.stats.data["bytes"] == [49 * 2 * 4 * 2 * 32 * 2]
