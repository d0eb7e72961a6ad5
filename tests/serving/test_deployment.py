"""The commands of a fleet, as they would be typed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kvweave.cli.engine_text import parse_engine
from kvweave.errors import ConfigurationError
from kvweave.serving.deployment import LOOPBACK, Deployment, Order, deploy
from kvweave.serving.machine import Installation, Machine
from kvweave.serving.ports import take_ports
from kvweave.serving.shape import ServerShape, server_shape

GPUS = Machine(tuple("01234567"), 64, 512)


def shape(text: str) -> ServerShape:
    engine = parse_engine(text)
    return server_shape(text, engine.parallel, engine.cache, engine.model_options, engine.stated)


def order(prefill: str, decode: str, *arguments: str, port: int = 21500) -> Order:
    sides = (tuple(map(shape, side.split())) for side in (prefill, decode))
    return Order("a/model", *sides, arguments, port)


def fleet(wanted: Order, machine: Machine = GPUS, environment: Mapping[str, str] | None = None) -> list[Deployment]:
    return list(deploy(wanted, machine, Installation(), environment or {}))


def option(deployment: Deployment, name: str) -> list[str]:
    """Everything that follows each occurrence of an option."""
    words = deployment.command
    return [words[number + 1] for number, word in enumerate(words) if word == name]


def transfer(deployment: Deployment) -> dict:
    return json.loads(option(deployment, "--kv-transfer-config")[0])


def test_one_server_a_shape_and_the_router_last() -> None:
    found = fleet(order("tp=2 tp=1", "tp=4"))
    assert [each.name for each in found] == ["prefill-0", "prefill-1", "decode", "router"]
    assert [each.role for each in found] == ["prefill", "prefill", "decode", "router"]
    assert [each.shape for each in found] == ["tp=2", "tp=1", "tp=4", ""]


def test_a_server_s_command_has_its_shape_its_port_and_the_user_s_arguments() -> None:
    prefill = fleet(order("tp=2,block=64", "tp=1", "--max-model-len", "2048"))[0]
    assert prefill.command[:5] == ("vllm", "serve", "a/model", "--host", "127.0.0.1")
    assert option(prefill, "--tensor-parallel-size") == ["2"]
    assert option(prefill, "--block-size") == ["64"]
    assert option(prefill, "--port") == [str(prefill.port)]
    assert prefill.command[-2:] == ("--max-model-len", "2048")


def test_decode_servers_name_the_prefill_servers_and_recompute_what_fails() -> None:
    first, second, decode, _ = fleet(order("tp=1 tp=1", "tp=1"))
    controls = [transfer(each)["kv_connector_extra_config"] for each in (first, second)]
    assert [transfer(each)["kv_role"] for each in (first, decode)] == ["kv_producer", "kv_consumer"]
    assert transfer(decode)["kv_load_failure_policy"] == "recompute"
    assert transfer(decode)["kv_connector_extra_config"] == {
        "peers": [f"127.0.0.1:{control['port']}" for control in controls]
    }


def test_every_data_parallel_rank_has_a_control_channel() -> None:
    prefill, decode, _ = fleet(order("tp=1,dp=3", "tp=1"))
    first = transfer(prefill)["kv_connector_extra_config"]["port"]
    peers = transfer(decode)["kv_connector_extra_config"]["peers"]
    assert peers == [f"127.0.0.1:{first + number}" for number in range(3)]


def test_the_router_knows_every_server_by_its_side() -> None:
    *servers, router = fleet(order("tp=1 tp=1", "tp=1 tp=2"))
    assert option(router, "--prefill") == [server.url for server in servers[:2]]
    assert option(router, "--decode") == [server.url for server in servers[2:]]
    assert (router.port, option(router, "--port")) == (21500, ["21500"])


def test_a_progressive_fleet_has_our_own_proxy_that_knows_every_control_channel() -> None:
    wanted = order("tp=1,dp=2 tp=1", "tp=1")
    *servers, proxy = fleet(replace(wanted, progressive=True))
    assert proxy.command[1:3] == ("-m", "kvweave.serving.proxy")
    controls = [transfer(each)["kv_connector_extra_config"]["port"] for each in servers[:2]]
    peers = [f"127.0.0.1:{controls[0]},127.0.0.1:{controls[0] + 1}", f"127.0.0.1:{controls[1]}"]
    assert option(proxy, "--prefill") == [f"{server.url}@{own}" for server, own in zip(servers, peers, strict=False)]
    assert option(proxy, "--decode") == [servers[2].url]
    assert (proxy.role, proxy.port, option(proxy, "--port")) == ("router", 21500, ["21500"])


def test_no_port_is_given_twice() -> None:
    found = fleet(order("tp=1 tp=1", "tp=1"))
    controls = [transfer(each)["kv_connector_extra_config"]["port"] for each in found[:2]]
    ports = [*(each.port for each in found), *controls, *map(int, option(found[-1], "--prometheus-port"))]
    assert len(set(ports)) == len(ports)
    assert take_ports(min(ports), [1]) == [21500]


def test_gpus_are_named_in_each_server_s_environment() -> None:
    *servers, router = fleet(order("tp=2", "tp=1"))
    assert [each.environment["CUDA_VISIBLE_DEVICES"] for each in servers] == ["0,1", "2"]
    assert router.environment == {}


def test_what_the_user_has_set_stays() -> None:
    set_before = {"OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": "0,1"}
    (prefill, *_) = fleet(order("tp=1", "tp=1"), Machine(None, 8, 64), set_before)
    assert (prefill.environment["VLLM_CPU_KVCACHE_SPACE"], "OMP_NUM_THREADS" in prefill.environment) == ("4", False)
    (prefill, *_) = fleet(order("tp=1", "tp=1"), GPUS, set_before | {"UCX_NET_DEVICES": "mlx5_0:1"})
    assert (prefill.environment["CUDA_VISIBLE_DEVICES"], "UCX_NET_DEVICES" in prefill.environment) == ("0", False)


def test_workers_listen_on_loopback() -> None:
    *servers, _ = fleet(order("tp=1", "tp=1"))
    assert [LOOPBACK.items() <= each.environment.items() for each in servers] == [True, True]


@pytest.mark.parametrize(
    ("environment", "added"),
    [
        ({}, {}),
        ({"HTTP_PROXY": "http://proxy"}, {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}),
        ({"http_proxy": "x", "NO_PROXY": "inside"}, {"NO_PROXY": "inside,127.0.0.1", "no_proxy": "127.0.0.1"}),
    ],
    ids=["no proxy", "a proxy", "a proxy with exceptions"],
)
def test_the_router_asks_no_proxy_for_its_servers(environment: dict[str, str], added: dict[str, str]) -> None:
    assert fleet(order("tp=1", "tp=1"), environment=environment)[-1].environment == added


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("--port", "kvweave's --port"), ("--host", "loopback only"), ("--kv-transfer-config={}", "start vLLM yourself"),
        ("--tensor-parallel-size", "write tp in"), ("--tensor_parallel_size=2", "write tp in"), ("-tp", "write tp in"),
        ("--block-size", "write block_size in"), ("--kv-cache-dtype", "write dtype in"), ("--model", "in front of --"),
        ("--api-key", "without a key"), ("--ssl-keyfile=x", "plain HTTP"),
    ],
)  # fmt: skip
def test_arguments_that_serve_writes_itself_are_refused(argument: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{argument}: not for vLLM behind --; .*{remedy}"):
        order("tp=1", "tp=1", "--max-model-len", "9", argument)


def test_a_key_that_the_environment_asks_for_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^VLLM_API_KEY: it is set, but .*; unset it$"):
        fleet(order("tp=1", "tp=1"), environment={"VLLM_API_KEY": "secret"})


def test_a_command_can_be_typed() -> None:
    line = fleet(order("tp=2", "tp=1"))[0].shell_line
    assert "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/model --host 127.0.0.1 --port " in line
    assert "--kv-transfer-config '{" in line
