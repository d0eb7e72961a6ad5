"""What vLLM carries between our two roles: once at start from worker to scheduler, then every step back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata

from kvweave.integrations.vllm.layout import RankDescription
from kvweave.runtime.local_channel import Endpoint


@dataclass(frozen=True)
class RankHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """One worker: what it holds, what peers need to read it, and where its coordinators reach it, by role."""

    description: RankDescription
    agent_data: bytes
    endpoints: Mapping[str, Endpoint]


@dataclass(frozen=True)
class Finished(KVConnectorMetadata):  # type: ignore[misc]
    """Requests that every worker reports as finished in this step, each once.

    ``released`` were offered and are read; ``loaded`` were fetched, of which ``failed`` must be computed after all.
    ``zeroed`` are numbers of fetches whose target blocks vLLM zeroes in this step, before anything is read into them.
    """

    released: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    zeroed: frozenset[int] = frozenset()
