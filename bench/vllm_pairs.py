"""The two pairs that are compared: vLLM's prefill and decode servers, joined by this project and by NixlConnector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.servers import Deployment, Progress, Server, deploy, free_port, kvweave, running

OURS, INCUMBENT = "kvweave", "NixlConnector"


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode server."""

    name: str
    prefill: Server
    decode: Server


def nixl(role: str) -> dict[str, Any]:
    """The incumbent's configuration, over UCX and with its blocks in host memory."""
    return {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}


@contextmanager
def both_pairs(model: str, folder: Path, shapes: Sequence[str], progress: Progress) -> Iterator[list[Pair]]:
    """Four servers, started side by side; ``shapes`` are those of the prefill and of the decode servers."""
    made = served_model(model, folder / "models")
    deployments = [
        *_pair(OURS, model, made, shapes, kvweave("kv_producer"), kvweave("kv_consumer")),
        *_pair(INCUMBENT, model, made, shapes, nixl("kv_both"), nixl("kv_both")),
    ]
    with running(deployments, folder / "logs", progress) as servers:
        yield [Pair(OURS, *servers[:2]), Pair(INCUMBENT, *servers[2:])]


def _pair(
    name: str, model: str, made: Path, shapes: Sequence[str], *connectors: Mapping[str, Any]
) -> Iterator[Deployment]:
    for side, shape, connector in zip(("prefill", "decode"), shapes, connectors, strict=True):
        deployment = deploy(f"{name} {side}", model, made, shape, connector)
        yield _with_port(deployment)


def _with_port(deployment: Deployment) -> Deployment:
    """The incumbent's side channel listens on a fixed port unless it is told another."""
    environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
    return Deployment(
        deployment.name, deployment.model, deployment.tp, deployment.pp, deployment.block_size, deployment.connector,
        deployment.dtype, deployment.prefix_caching, deployment.arguments, environment,
    )  # fmt: skip
