"""What documents and examples say about vLLM: commands that parse, settings that are accepted, manifests that join."""

from __future__ import annotations

import ast
import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kvweave.cli import app
from kvweave.integrations.vllm import CONNECTOR, settings, support
from kvweave.integrations.vllm.version import KNOWN_VERSIONS, REFUSED_SPECS, TESTED_VERSION
from kvweave.runtime.addresses import PeerList, split_address
from tests.documented_commands import ROOT, Shown, shown_commands, transfer_configs

PAGE = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "examples" / "vllm" / "kubernetes.yaml"


def setting_keys() -> set[str]:
    """The keys of ``kv_connector_extra_config`` that ``settings`` reads: the texts it looks up in ``extra``."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(settings))):
        if isinstance(node, ast.Call) and any(isinstance(each, ast.Name) and each.id == "extra" for each in node.args):
            found |= {each.value for each in node.args[1:2] if isinstance(each, ast.Constant)}
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "extra.get":
            found |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    return {key for key in found if isinstance(key, str)}


def read(config: dict[str, Any]) -> settings.Settings:
    transfer = SimpleNamespace(
        kv_role=config["kv_role"], engine_id="e", kv_connector_extra_config=config.get("kv_connector_extra_config", {})
    )
    parallel = SimpleNamespace(nnodes_within_dp=1, data_parallel_index=0)
    return settings.read_settings(SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel))


def manifests() -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def configs() -> list[Any]:
    return [pytest.param(config, id=f"{place} {number}") for number, (place, config) in enumerate(transfer_configs())]


@pytest.mark.parametrize("config", configs())
def test_every_shown_configuration_is_accepted(config: dict[str, Any]) -> None:
    assert (config["kv_connector"], config["kv_connector_module_path"]) == (
        CONNECTOR, "kvweave.integrations.vllm"
    )  # fmt: skip
    assert set(config.get("kv_connector_extra_config", {})) <= setting_keys()
    found = read(config)
    assert PeerList.parse(found.peers).addresses or found.bind.startswith("127.") or found.peers
    assert found.roles == ((settings.DECODE,) if config["kv_role"] == "kv_consumer" else (settings.PREFILL,))


@pytest.mark.parametrize("config", [each for each in configs() if each.values[0]["kv_role"] == "kv_consumer"])
def test_every_shown_decode_engine_recomputes_what_fails(config: dict[str, Any]) -> None:
    assert config["kv_load_failure_policy"] == "recompute"


def test_documents_and_manifests_show_both_roles() -> None:
    roles = {(place.split()[0], config["kv_role"]) for place, config in transfer_configs()}
    places = ("docs/vllm.md", "examples/vllm/README.md", "examples/vllm/kubernetes.yaml")
    assert {(place, role) for place in places for role in ("kv_producer", "kv_consumer")} <= roles


@pytest.mark.parametrize("command", shown_commands("kvweave"), ids=str)
def test_every_shown_kvweave_command_parses(command: Shown) -> None:
    result = CliRunner().invoke(app, [command.words[1], "--help"])
    options = {word.partition("=")[0] for word in command.words[2 : _end(command)] if word.startswith("-")}
    assert (result.exit_code, [option for option in options if option not in result.stdout]) == (0, [])


def _end(command: Shown) -> int:
    return command.words.index("--") if "--" in command.words else len(command.words)


def test_peers_of_each_side_name_the_other() -> None:
    shown = [config for place, config in transfer_configs() if place == "examples/vllm/README.md"]
    prefill = [read(config) for config in shown if config["kv_role"] == "kv_producer"]
    decode = next(read(config) for config in shown if config["kv_role"] == "kv_consumer")
    reached = [f"{each.advertise or each.host}:{each.port}" for each in prefill]
    assert list(decode.peers) == reached
    assert all(PeerList.parse(decode.peers).allows(split_address(address)[0]) for address in reached)
    router = next(command for command in shown_commands("vllm-router") if command.place == "examples/vllm/README.md")
    assert all(PeerList.parse(each.peers).allows(_host(router.values("--decode")[0])) for each in prefill)


def _host(url: str) -> str:
    return url.removeprefix("http://").partition(":")[0]


def test_pods_are_named_by_their_services() -> None:
    found = manifests()
    for role in ("prefill", "decode"):
        state, service = found["StatefulSet", role], found["Service", role]
        assert (state["spec"]["serviceName"], service["spec"]["clusterIP"]) == (role, "None")
        assert service["spec"]["selector"] == state["spec"]["template"]["metadata"]["labels"]
    pods = [f"prefill-{number}.prefill" for number in range(found["StatefulSet", "prefill"]["spec"]["replicas"])]
    decode = next(read(config) for place, config in transfer_configs() if place.endswith(".yaml decode"))
    router = next(command for command in shown_commands("vllm-router") if "yaml" in command.place)
    assert list(decode.peers) == [f"{pod}:5600" for pod in pods]
    assert router.values("--prefill") == [f"http://{pod}:8000" for pod in pods]


def test_a_prefill_pod_advertises_the_name_that_decode_pods_know() -> None:
    config = next(config for place, config in transfer_configs() if place.endswith(".yaml prefill"))
    (container,) = manifests()["StatefulSet", "prefill"]["spec"]["template"]["spec"]["containers"]
    variables = {each["name"] for each in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", str(config))) == variables
    assert read(config).advertise == "$(POD_NAME).prefill"
    assert read(config).port in [port["containerPort"] for port in container["ports"]]


def test_every_pod_is_probed_and_every_server_is_fenced() -> None:
    found = manifests()
    for kind, name in (("StatefulSet", "prefill"), ("StatefulSet", "decode"), ("Deployment", "router")):
        (container,) = found[kind, name]["spec"]["template"]["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    for role in ("prefill", "decode"):
        labels = found["StatefulSet", role]["spec"]["template"]["metadata"]["labels"]
        assert found["NetworkPolicy", role]["spec"]["podSelector"]["matchLabels"] == labels
        assert all(rule["from"] for rule in found["NetworkPolicy", role]["spec"]["ingress"])


def test_only_decode_pods_reach_the_control_channel() -> None:
    rules = manifests()["NetworkPolicy", "prefill"]["spec"]["ingress"]
    opened = [rule for rule in rules if "ports" not in rule or rule["ports"] != [{"port": "http"}]]
    assert [rule["from"] for rule in opened] == [
        [{"podSelector": {"matchLabels": {"app": "kvweave", "role": "decode"}}}]
    ]


@pytest.mark.parametrize("key", sorted(setting_keys()))
def test_every_setting_is_in_the_page(key: str) -> None:
    assert f"`{key}`" in PAGE


def test_the_settings_are_found_where_they_are_read() -> None:
    assert {"host", "port", "advertise", "peers", "kv_lease_duration", "fingerprint"} <= setting_keys()


@pytest.mark.parametrize(
    "name",
    [
        *REFUSED_SPECS, *(refusal.name for refusal in support.REFUSED_OPTIONS), *support.REFUSED_METHODS,
        *support.REFUSED_SETTINGS, *support.REFUSED_NEIGHBOURS, *support.COMPUTED_REQUESTS,
    ],
)  # fmt: skip
def test_everything_that_is_refused_or_computed_is_in_the_page(name: str) -> None:
    assert name.removeprefix("--speculative-config method ") in PAGE


def metric_names() -> set[str]:
    """Every name under which ``stats`` counts; Prometheus adds ``_total`` to counters. It cannot be imported here."""
    tree = ast.parse((ROOT / "src/kvweave/integrations/vllm/stats.py").read_text(encoding="utf-8"))
    tables = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    histograms = {entry.elts[0].value for entry in tables["_HISTOGRAMS"].values}
    return histograms | {f"vllm:kvweave_{key.value}_total" for key in tables["_COUNTERS"].keys}


def test_every_metric_is_in_the_page_and_no_other() -> None:
    assert set(re.findall(r"^\| `(vllm:kvweave_\w+)` \|", PAGE, re.MULTILINE)) == metric_names()


def test_the_page_names_the_version() -> None:
    assert TESTED_VERSION in PAGE
    assert all(f"{version}" in PAGE for version in KNOWN_VERSIONS)
