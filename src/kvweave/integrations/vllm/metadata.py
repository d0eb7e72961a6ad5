"""What vLLM carries between our two roles: once at start from worker to scheduler, then every step to and fro.

The scheduler role knows first when a load has ended. vLLM asks it about that only after steps in which a worker had
something to say (``update_connector_output``), so while loads are under way each worker says ``Heard``::

    step n    Finished(watched) -> workers -> Heard -> update_connector_output: what has been loaded by now
    step n+1  computes it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvweave.integrations.vllm.layout import RankDescription
from kvweave.runtime.local_channel import Endpoint


@dataclass(frozen=True)
class RankHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """One worker: what it holds, what peers need to read it, and where its coordinators reach it, by role.

    ``shared`` says that another connector copies this worker's blocks too, maybe after their request has ended.
    """

    description: RankDescription
    agent_data: bytes
    endpoints: Mapping[str, Endpoint]
    shared: bool = False


@dataclass(frozen=True)
class Finished(KVConnectorMetadata):  # type: ignore[misc]
    """Requests that every worker reports as finished in this step, each once.

    ``released`` were offered and are read; ``failed`` could not be fetched and must be computed after all. ``zeroed``
    are numbers of fetches whose target blocks vLLM zeroes in this step, or another connector copies, before anything is
    read into them. ``watched`` says that fetches are under way, which the workers answer by ``Heard``.
    """

    released: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    zeroed: frozenset[int] = frozenset()
    watched: bool = False


@dataclass(frozen=True)
class Heard(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """A worker's answer to a step in which fetches are under way."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """All workers say the same."""
        return self
