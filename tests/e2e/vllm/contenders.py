"""The connectors that the sweep compares: how their servers are deployed, and what shows that something was moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e.vllm.live_bytes import ROOT, recording
from tests.e2e.vllm.models import MODELS
from tests.e2e.vllm.pairs import Place
from tests.e2e.vllm.results import INCUMBENT, OURS
from tests.e2e.vllm.servers import Deployment, deploy, free_port, kvweave


@dataclass(frozen=True)
class Contender:
    """One connector. ``both_ways``: a server prefills for some pairs and decodes for others, which saves servers."""

    name: str
    rounds: int
    both_ways: bool
    transfers: str
    """The counter of finished transfers in the decode server's metrics."""
    deployment: Callable[[str, Path, Place, Path], Deployment]
    """Of a model in its folder at a place; the last one is a folder for records."""


def _ours(model: str, folder: Path, place: Place, records: Path) -> Deployment:
    """A failed load fails its request. Where tokens can't be compared, what is offered and delivered is recorded."""
    role = "kv_producer" if place.side == "prefill" else "kv_consumer"
    connector = kvweave(role, "fail") if MODELS[model].repeatable else recording(role, records)
    deployment = deploy(f"{OURS} {place}", model, folder, place.shape, connector)
    return replace(deployment, environment={"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"})


def _incumbent(model: str, folder: Path, place: Place, _: Path) -> Deployment:
    """Its blocks lie in host memory, its side channel needs a port of its own, and Mamba's conv states their order."""
    role = "kv_both" if "pp=" not in place.shape else "kv_producer" if place.side == "prefill" else "kv_consumer"
    connector = {
        "kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
    }  # fmt: skip
    environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()), "VLLM_SSM_CONV_STATE_LAYOUT": "DS"}
    deployment = deploy(f"{INCUMBENT} {place}", model, folder, place.shape, connector)
    return replace(deployment, environment=environment)


KVWEAVE = Contender(OURS, 2, False, "vllm:kvweave_transfer_bytes_count", _ours)
NIXL = Contender(INCUMBENT, 1, True, "vllm:nixl_xfer_time_seconds_count", _incumbent)
