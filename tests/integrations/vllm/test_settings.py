"""The configuration: read once, every wrong value named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.settings import DECODE, PREFILL, read_settings
from kvweave.runtime.keys import make_key_files


def config(role: str = "kv_producer", index: int = 0, **extra: object) -> Any:
    transfer = KVTransferConfig(kv_connector="X", kv_role=role, engine_id="e", kv_connector_extra_config=extra)
    parallel = SimpleNamespace(data_parallel_index=index)
    return SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel)


@pytest.mark.parametrize(
    ("role", "roles"),
    [("kv_producer", (PREFILL,)), ("kv_consumer", (DECODE,)), ("kv_both", (PREFILL, DECODE))],
)
def test_roles(role: str, roles: tuple[str, ...]) -> None:
    assert read_settings(config(role)).roles == roles


def test_nothing_need_be_set() -> None:
    settings = read_settings(config())
    assert (settings.bind, settings.peers, settings.lease_seconds) == ("127.0.0.1:0", (), 30.0)
    assert (settings.advertise, settings.fingerprint, settings.recompute_threshold) == (None, None, 0)
    assert (settings.staging, settings.same_host) == ("auto", True)


def test_everything_can_be_set() -> None:
    stated = {
        "host": "::1", "port": 5600, "advertise": "node7", "peers": ["10.0.0.0/8"], "kv_lease_duration": 5,
        "kv_recompute_threshold": 64, "fingerprint": "", "staging": "never",
        "same_host": False,
    }  # fmt: skip
    settings = read_settings(config(**stated))
    assert (settings.bind, settings.advertise, settings.peers) == ("[::1]:5600", "node7", ("10.0.0.0/8",))
    assert (settings.lease_seconds, settings.recompute_threshold, settings.fingerprint) == (5.0, 64, "")
    assert (settings.staging, settings.same_host) == ("never", False)


def test_data_parallel_ranks_listen_side_by_side() -> None:
    assert [read_settings(config(index=index, port=5600)).port for index in range(3)] == [5600, 5601, 5602]
    assert read_settings(config(index=2)).port == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", 5), ("port", "x"), ("port", -1), ("port", True), ("peers", "10.0.0.7"), ("peers", [1]),
        ("kv_lease_duration", 0), ("kv_lease_duration", "long"), ("kv_recompute_threshold", 1.5), ("fingerprint", 7),
        ("staging", "sometimes"), ("staging", True), ("staging", None),
        ("same_host", "yes"), ("same_host", 1), ("same_host", None),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"kv_connector_extra_config.{key}: "):
        read_settings(config(**{key: value}))


def test_every_address_is_none_that_can_be_called() -> None:
    with pytest.raises(ConfigurationError, match="set advertise"):
        read_settings(config(host="0.0.0.0"))
    assert read_settings(config(host="0.0.0.0", advertise="node7")).bind == "0.0.0.0:0"


def test_a_misspelled_key_is_told(caplog: pytest.LogCaptureFixture) -> None:
    read_settings(config(peer=["10.0.0.7"], port=5600))
    assert "peer: not known here; known are host, port, " in caplog.text


def test_known_keys_are_not(caplog: pytest.LogCaptureFixture) -> None:
    read_settings(config(port=5600))
    assert caplog.text == ""


def test_keys_are_read_from_their_files(tmp_path: Path) -> None:
    own, other = make_key_files(tmp_path / "own"), make_key_files(tmp_path / "allowed", "decode")
    secret_file = str(tmp_path / "own" / "engine.key_secret")
    for allowed in (str(tmp_path / "allowed"), [other.public]):
        keys = read_settings(config(keys=secret_file, allowed_keys=allowed)).keys
        assert keys is not None
        assert (keys.public, list(keys.allowed.values())) == (own.public, [other.public])


@pytest.mark.parametrize(
    ("stated", "line"),
    [({"keys": "x"}, '"allowed_keys": "FOLDER"'), ({"allowed_keys": "x"}, '"keys": "FOLDER/engine.key_secret"')],
    ids=["no allowed keys", "no own key"],
)
def test_half_of_the_keys_is_refused_with_the_line_to_add(stated: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigurationError, match=line):
        read_settings(config(**stated))
