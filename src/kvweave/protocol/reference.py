"""A reference to an offer, and its form in a request's ``kv_transfer_params``.

The names are those that vLLM's NixlConnector uses, so its example proxies and vllm-router pass them on; what is ours
stands under the key ``kvweave``. A reference comes back from an API client: nothing in it is believed. The claim's
answer says which blocks and tokens are valid, and a reference that says otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from kvweave.errors import RemoteProtocolError
from kvweave.protocol.messages import (
    BlockTable,
    Claimed,
    EngineId,
    GroupName,
    Number,
    OfferKey,
    RankCount,
    RequestId,
    TokenCount,
)

REFERENCE_VERSION = 1


@dataclass(frozen=True, slots=True)
class OfferReference:
    """Where an offer is, which one it is, and what it holds: valid tokens and block ids per group.

    ``tp_size`` is for readers of vLLM's params alone. ``traceparent`` names the offer's span (W3C Trace Context).
    """

    engine_id: str
    host: str
    port: int
    request_id: str
    generation: int
    num_tokens: int
    tables: Mapping[str, tuple[int, ...]]
    tp_size: int = 1
    traceparent: str | None = None

    @property
    def offer(self) -> OfferKey:
        """The offer's key at its engine."""
        return OfferKey(self.request_id, self.generation)

    @property
    def address(self) -> str:
        """The control channel's address.

        >>> OfferReference("engine", "::1", 5600, "request", 1, 8, {}).address
        '[::1]:5600'
        """
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def difference(self, claimed: Claimed) -> str | None:
        """What the prefill engine says otherwise about this offer; None when both agree."""
        if (self.offer, self.num_tokens, dict(self.tables)) == (claimed.offer, claimed.num_tokens, claimed.tables):
            return None
        blocks = [sum(map(len, tables.values())) for tables in (self.tables, claimed.tables)]
        return (
            f"request {self.request_id}: the reference says {self.num_tokens} tokens in {blocks[0]} blocks, the "
            f"prefill engine {claimed.num_tokens} tokens in {blocks[1]} blocks, or other ones; pass it on unchanged"
        )

    def params(self) -> dict[str, Any]:
        """The ``kv_transfer_params`` that travel to the decode engine, in plain JSON types."""
        ours = {"version": REFERENCE_VERSION, "generation": self.generation, "groups": list(self.tables)}
        if self.traceparent is not None:
            ours["traceparent"] = self.traceparent
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_request_id": self.request_id,
            "remote_block_ids": [list(blocks) for blocks in self.tables.values()],
            "remote_num_tokens": self.num_tokens,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp_size,
            "kvweave": ours,
        }

    @staticmethod
    def from_params(params: object, allows_host: Callable[[str], bool]) -> OfferReference:
        """The reference in a client's ``kv_transfer_params``; foreign keys are ignored.

        Raises ``RemoteProtocolError`` naming the field for a wrong type or range, another version, or a host that
        ``allows_host`` does not allow.
        """
        try:
            read = msgspec.convert(params, _Params)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"kv_transfer_params: {error}") from error
        ours = read.kvweave
        if ours.version != REFERENCE_VERSION:
            raise RemoteProtocolError(
                f"kv_transfer_params: kvweave.version is {ours.version}, this side reads {REFERENCE_VERSION}; "
                "run the same kvweave release on both sides"
            )
        if not allows_host(read.remote_host):
            raise RemoteProtocolError(
                f"kv_transfer_params: remote_host {read.remote_host!r} is not among this engine's peers; "
                f"add it: peers=[{read.remote_host!r}]"
            )
        if len(ours.groups) != len(read.remote_block_ids) or len(set(ours.groups)) != len(ours.groups):
            raise RemoteProtocolError(
                f"kv_transfer_params: {len(read.remote_block_ids)} tables in remote_block_ids for the groups "
                f"{', '.join(ours.groups)}; give one table per group"
            )
        return OfferReference(
            read.remote_engine_id, read.remote_host, read.remote_port, read.remote_request_id, ours.generation,
            read.remote_num_tokens, dict(zip(ours.groups, read.remote_block_ids, strict=True)), read.tp_size,
            ours.traceparent,
        )  # fmt: skip


class _Ours(Struct, frozen=True):
    version: int
    generation: Number
    groups: Annotated[tuple[GroupName, ...], Meta(max_length=64)]
    traceparent: Annotated[str, Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")] | None = None


class _Params(Struct, frozen=True):
    remote_engine_id: EngineId
    remote_request_id: RequestId
    remote_block_ids: Annotated[tuple[BlockTable, ...], Meta(max_length=64)]
    remote_num_tokens: TokenCount
    remote_host: Annotated[str, Meta(min_length=1, max_length=253)]
    remote_port: Annotated[int, Meta(ge=1, le=65535)]
    kvweave: _Ours
    tp_size: RankCount = 1
