"""Where one rank stands, and which remote engines it knows: what the rank-level view is computed from.

::

    local   engine "decode"   tp_rank 1 of tp_size 4
    remote  engine "prefill"  tp_size 8, block_size 16     known after ``register_remote_engine``

Carries what vLLM's class of this name carries, except for what only tells cases apart there (attention backends,
"has Mamba", tensor shapes): the groups given to ``compute_tp_mapping`` say that, layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.whole import require_whole
from kvweave.errors import ConfigurationError, LocalProtocolError


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """What a rank knows of a remote engine: its sizes, tokens per block, bytes of one block on one rank and layer.

    vLLM's ``EngineTransferInfo``.
    """

    tp_size: int
    block_size: int
    block_bytes: int
    pp_size: int = 1
    dcp_size: int = 1

    def __post_init__(self) -> None:
        for name in ("tp_size", "block_size", "block_bytes", "pp_size", "dcp_size"):
            require_whole("remote engine", 1, **{name: getattr(self, name)})


@dataclass(slots=True, kw_only=True)
class TransferTopology:
    """One local rank and the remote engines that it knows.

    ``total_num_kv_heads`` is the whole model's; with ``is_mla`` it does not matter, as MLA caches one vector for all
    heads. ``block_size`` is in tokens, ``interleave`` the tokens dealt at a time under dcp.

    Raises ``ConfigurationError`` for sizes below 1, a rank outside its engine, or a dcp that does not divide tp.

    >>> topology = TransferTopology(engine_id="decode", tp_rank=1, tp_size=4, block_size=16, total_num_kv_heads=8)
    >>> info = topology.register_remote_engine("prefill", RemoteEngine(tp_size=8, block_size=16, block_bytes=4096))
    >>> print(topology.describe("prefill"))  # doctest: +NORMALIZE_WHITESPACE
    TransferTopology(local=decode, remote=prefill, num_kv_heads=8, local_tp=4, remote_tp=8, local_rank=1, remote_pp=1,
    local_dcp=1, remote_dcp=1, local_block_size=16, remote_block_size=16, remote_block_bytes=4096)
    """

    engine_id: str
    tp_rank: int
    tp_size: int
    block_size: int
    total_num_kv_heads: int
    is_mla: bool = False
    dcp_size: int = 1
    interleave: int = 1
    _remotes: dict[str, RemoteEngine] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_whole("topology", 1, block_size=self.block_size, total_num_kv_heads=self.total_num_kv_heads)
        require_whole("topology", None, tp_rank=self.tp_rank)
        self.parallel()
        if not 0 <= self.tp_rank < self.tp_size:
            raise ConfigurationError(
                f"tp_rank: {self.tp_rank} is outside tp_size={self.tp_size}; use 0 to {self.tp_size - 1}"
            )

    @property
    def rank(self) -> RankCoordinates:
        """This rank's coordinates."""
        return RankCoordinates(tp=self.tp_rank)

    @property
    def num_cached_heads(self) -> int:
        """KV heads that the cache tells apart: 1 for MLA, whose one vector serves all heads."""
        return 1 if self.is_mla else self.total_num_kv_heads

    def parallel(self) -> ParallelConfig:
        """The local engine's sizes."""
        return ParallelConfig(tp=self.tp_size, dcp=self.dcp_size, interleave=self.interleave)

    def register_remote_engine(self, remote_engine_id: str, info: RemoteEngine) -> RemoteEngine:
        """Remembers a remote engine; registering the same again changes nothing.

        Raises ``LocalProtocolError`` for the local engine's own id, or when the id is known with another shape: an
        engine that came back differently has a new id.
        """
        if remote_engine_id == self.engine_id:
            raise LocalProtocolError(f"engine {remote_engine_id}: it is the local engine; register remote engines only")
        known = self._remotes.setdefault(remote_engine_id, info)
        if known != info:
            raise LocalProtocolError(
                f"engine {remote_engine_id}: registered as {known}, now {info}; unregister it first, or use a new id"
            )
        return known

    def unregister_remote_engine(self, remote_engine_id: str) -> None:
        """Forgets a remote engine; an unknown one is ignored."""
        self._remotes.pop(remote_engine_id, None)

    def get_engine_info(self, remote_engine_id: str) -> RemoteEngine:
        """What was registered; raises ``LocalProtocolError`` for an unknown id."""
        if remote_engine_id not in self._remotes:
            known = ", ".join(sorted(self._remotes)) or "none"
            raise LocalProtocolError(f"engine {remote_engine_id}: not registered (known: {known}); register it first")
        return self._remotes[remote_engine_id]

    def describe(self, remote_engine_id: str) -> str:
        """One line for a log. MLA shows ``num_kv_heads=1``."""
        remote = self.get_engine_info(remote_engine_id)
        shown = {
            "local": self.engine_id,
            "remote": remote_engine_id,
            "num_kv_heads": self.num_cached_heads,
            "local_tp": self.tp_size,
            "remote_tp": remote.tp_size,
            "local_rank": self.tp_rank,
            "remote_pp": remote.pp_size,
            "local_dcp": self.dcp_size,
            "remote_dcp": remote.dcp_size,
            "local_block_size": self.block_size,
            "remote_block_size": remote.block_size,
            "remote_block_bytes": remote.block_bytes,
        }
        return "TransferTopology(" + ", ".join(f"{name}={value}" for name, value in shown.items()) + ")"
