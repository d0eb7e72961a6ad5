"""vLLM servers and vllm-router on this machine: which commands, on which ports and devices, and their whole life.

``shape`` turns an engine's keys into vLLM's options, ``deployment`` joins them to commands, ``process`` and ``guard``
start and end them, ``fleet`` waits and watches, ``probe`` asks over HTTP. Nothing here imports vLLM.
"""

from __future__ import annotations

from kvweave.serving.deployment import Deployment, Order, deploy
from kvweave.serving.fleet import Died, Fleet, Outcome, Stopped
from kvweave.serving.interruption import Interruption
from kvweave.serving.machine import Installation, Machine
from kvweave.serving.shape import ServerShape, server_shape

__all__ = [
    "Deployment", "Died", "Fleet", "Installation", "Interruption", "Machine", "Order", "Outcome", "ServerShape",
    "Stopped", "deploy", "server_shape",
]  # fmt: skip
