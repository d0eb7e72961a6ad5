"""The two pairs that are compared: vLLM's prefill and decode servers, joined by this project and by NixlConnector."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e.vllm.contenders import KVWEAVE, NIXL
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.pairs import Place
from tests.e2e.vllm.servers import Deployment, Progress, Server, ServerFailed, free_port, running

READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode server."""

    name: str
    prefill: Server
    decode: Server


@contextmanager
def both_pairs(
    model: str, folder: Path, shapes: Sequence[str], named: bool, progress: Progress
) -> Iterator[list[Pair]]:
    """Four servers, started side by side; ``shapes`` are those of the prefill and of the decode servers.

    ``named``: our decode server's configuration names its peer, so that the handshake is over before the first request.
    NixlConnector has no such setting.
    """
    made = served_model(model, folder / "models")
    places = [Place(side, shape) for side, shape in zip(("prefill", "decode"), shapes, strict=True)]
    deployments = [
        contender.deployment(model, made, place, folder / "records")
        for contender in (KVWEAVE, NIXL)
        for place in places
    ]
    if named:
        port = free_port()
        deployments[0] = _with_settings(deployments[0], port=port)
        deployments[1] = _with_settings(deployments[1], peers=[f"127.0.0.1:{port}"])
    with running(deployments, folder / "logs", progress) as servers:
        if named:
            _wait_until_ready(servers[1])
        yield [Pair(KVWEAVE.name, *servers[:2]), Pair(NIXL.name, *servers[2:])]


def _with_settings(deployment: Deployment, **settings: object) -> Deployment:
    connector = dict(deployment.connector or {})
    connector["kv_connector_extra_config"] = connector.get("kv_connector_extra_config", {}) | settings
    return replace(deployment, connector=connector)


def _wait_until_ready(decode: Server) -> None:
    """A named peer is asked every few seconds until it is there."""
    deadline = time.monotonic() + READY_SECONDS
    while "is ready" not in decode.log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise ServerFailed(f"no handshake within {READY_SECONDS:g} s:\n{decode.tail()}")
        time.sleep(0.5)
