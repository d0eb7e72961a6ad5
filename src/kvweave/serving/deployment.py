"""The commands of a fleet: prefill servers, decode servers, and vllm-router in front, on loopback.

Ports are counted upward from the router's: first every server's, then the control channels of the prefill servers (one
for each data parallel rank), then the router's metrics. Decode servers name the control channels as ``peers``, so that
connections stand before the first request.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvweave.errors import ConfigurationError
from kvweave.serving.machine import Installation, Machine
from kvweave.serving.pairing import PrefillServer
from kvweave.serving.ports import HOST, take_ports
from kvweave.serving.shape import OPTIONS, ServerShape

PREFILL, DECODE, ROUTER = "prefill", "decode", "router"

_OWN_OPTIONS = {
    "--host": "servers listen on loopback only",
    "--port": "write kvweave's --port in front of --",
    "--model": "write it in front of --",
    "--api-key": "servers listen on loopback only, and the router asks them without a key",
    "--ssl-certfile": "the router asks the servers over plain HTTP",
    "--ssl-keyfile": "the router asks the servers over plain HTTP",
    "--uds": "the router asks the servers over TCP",
    "--root-path": "the router asks the servers below /",
    "--kv-transfer-config": "serve writes it; start vLLM yourself to write your own (docs/vllm.md)",
} | {option: f"write {key} in --prefill and --decode" for key, option in OPTIONS.items()}
LOOPBACK = {
    "VLLM_HOST_IP": HOST, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "UCX_NET_DEVICES": "lo"
}  # fmt: skip
"""What keeps a server's workers from listening elsewhere: vLLM's own address, and those of the libraries below it."""

_SHORT_OPTIONS = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-dcp": "--decode-context-parallel-size", "-pcp": "--prefill-context-parallel-size",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be served: a model, one shape for each server, arguments for every vLLM, and the router's port.

    ``progressive``: our own proxy stands in front instead of vllm-router, and caches move while they are computed.
    """

    model: str
    prefill: tuple[ServerShape, ...]
    decode: tuple[ServerShape, ...]
    arguments: tuple[str, ...] = ()
    port: int = 8000
    progressive: bool = False

    def __post_init__(self) -> None:
        for argument in self.arguments:
            name = argument.partition("=")[0].replace("_", "-")
            option = _SHORT_OPTIONS.get(name, name)
            if option in _OWN_OPTIONS:
                raise ConfigurationError(f"{argument}: not for vLLM behind --; {_OWN_OPTIONS[option]}")


@dataclass(frozen=True, slots=True)
class Deployment:
    """One program of a fleet. ``environment`` is what is added to the user's own; ``shape`` is empty for the router."""

    name: str
    role: str
    port: int
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    shape: str = ""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    @property
    def shell_line(self) -> str:
        """The command as it can be typed.

        >>> Deployment("prefill", "prefill", 8001, ("vllm", "serve", "a model"), {"OMP_NUM_THREADS": "1"}).shell_line
        "OMP_NUM_THREADS=1 vllm serve 'a model'"
        """
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.command)])


def deploy(
    order: Order, machine: Machine, installation: Installation, environment: Mapping[str, str]
) -> tuple[Deployment, ...]:
    """The fleet of an order, the router last; what the user's ``environment`` sets already stays as it is.

    Raises ``ConfigurationError`` when the machine has too few GPUs or ports, or the environment asks for a key.
    """
    if environment.get("VLLM_API_KEY"):
        raise ConfigurationError(f"VLLM_API_KEY: it is set, but {_OWN_OPTIONS['--api-key']}; unset it")
    shapes = (*order.prefill, *order.decode)
    shares = machine.deal([shape.workers for shape in shapes])
    controls = [shape.engines for shape in order.prefill]
    ports = take_ports(order.port + 1, [1] * len(shapes) + controls + [1])
    servers, control, metrics = ports[: len(shapes)], ports[len(shapes) : -1], ports[-1]
    peers = [f"{HOST}:{first + i}" for first, count in zip(control, controls, strict=True) for i in range(count)]
    transfers = [_prefill_transfer(port) for port in control] + [_decode_transfer(peers)] * len(order.decode)
    names = [*_names(PREFILL, len(order.prefill)), *_names(DECODE, len(order.decode))]
    found = [
        _server(order, installation, name, shape, port, transfer, _unset(environment, LOOPBACK | share))
        for name, shape, port, transfer, share in zip(names, shapes, servers, transfers, shares, strict=True)
    ]
    if order.progressive:
        return (*found, _proxy(order, found, dict(zip(names, zip(control, controls, strict=True), strict=False))))
    return (*found, _router(order, installation, found, metrics, environment))


def _prefill_transfer(port: int) -> dict[str, Any]:
    return _transfer("kv_producer", {"host": HOST, "port": port})


def _decode_transfer(peers: list[str]) -> dict[str, Any]:
    return _transfer("kv_consumer", {"peers": peers}) | {"kv_load_failure_policy": "recompute"}


def _transfer(role: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "KVWeaveConnector",
        "kv_connector_module_path": "kvweave.integrations.vllm",
        "kv_role": role,
        "kv_connector_extra_config": extra,
    }


def _names(role: str, count: int) -> list[str]:
    return [role] if count == 1 else [f"{role}-{number}" for number in range(count)]


def _server(
    order: Order, installation: Installation, name: str, shape: ServerShape, port: int, transfer: dict[str, Any],
    share: Mapping[str, str],
) -> Deployment:  # fmt: skip
    command = (
        *installation.server, order.model, "--host", HOST, "--port", str(port), *shape.arguments,
        "--kv-transfer-config", json.dumps(transfer), *order.arguments,
    )  # fmt: skip
    return Deployment(name, name.partition("-")[0], port, command, {**share, **shape.environment}, shape.text)


def _router(
    order: Order,
    installation: Installation,
    servers: Sequence[Deployment],
    metrics: int,
    environment: Mapping[str, str],
) -> Deployment:
    sides = [word for server in servers for word in (f"--{server.role}", server.url)]
    command = (
        *installation.router, "--host", HOST, "--port", str(order.port), "--vllm-pd-disaggregation", *sides,
        "--kv-connector", "nixl", "--worker-startup-check-interval", "1", "--prometheus-port", str(metrics),
    )  # fmt: skip
    return Deployment(ROUTER, ROUTER, order.port, command, _without_proxy(environment))


def _proxy(order: Order, servers: Sequence[Deployment], controls: Mapping[str, tuple[int, int]]) -> Deployment:
    """Our own proxy; ``controls`` has each prefill server's first control port, and how many it has."""
    sides = []
    for server in servers:
        if server.name in controls:
            first, count = controls[server.name]
            peers = tuple(f"{HOST}:{first + number}" for number in range(count))
            sides += ["--prefill", str(PrefillServer(server.url, peers))]
        else:
            sides += ["--decode", server.url]
    command = (sys.executable, "-m", "kvweave.serving.proxy", "--port", str(order.port), *sides)
    return Deployment("proxy", ROUTER, order.port, command)


def _without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The router asks its servers over HTTP, and a proxy that is set would be asked for them."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in environment):
        return {}
    return {name: ",".join(filter(None, [environment.get(name), HOST])) for name in ("NO_PROXY", "no_proxy")}


def _unset(environment: Mapping[str, str], share: Mapping[str, str]) -> dict[str, str]:
    """A share of the machine without what the user has set; devices are dealt out of what the user has set."""
    return {name: value for name, value in share.items() if name == "CUDA_VISIBLE_DEVICES" or name not in environment}
