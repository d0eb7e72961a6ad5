"""What is known of a pair, in the one line that a log shows when a peer is ready."""

from __future__ import annotations

from collections.abc import Iterator

from kvweave.core.layout import EngineLayout, Shard
from kvweave.core.topology import RemoteEngine, TransferTopology


def describe_peer(engine_id: str, layout: EngineLayout, remote_id: str, remote: EngineLayout) -> str:
    """``TransferTopology.describe`` for two layouts; sizes are those of the first array with tokens, if there is one.

    Bytes are those of one logical block of it on one rank and layer.
    """
    local_shard, remote_shard = _first_shard(layout), _first_shard(remote)
    heads = {axis.name: axis.size for axis in local_shard.array.axes}.get("head")
    topology = TransferTopology(
        engine_id=engine_id, tp_rank=0, tp_size=layout.parallel.tp, block_size=_block_tokens(local_shard),
        total_num_kv_heads=heads or 1, is_mla=heads is None, dcp_size=layout.parallel.dcp,
        interleave=layout.parallel.interleave,
    )  # fmt: skip
    sizes = remote.parallel
    topology.register_remote_engine(
        remote_id,
        RemoteEngine(sizes.tp, _block_tokens(remote_shard), remote_shard.block_bytes, sizes.pp, sizes.dcp),
    )
    return topology.describe(remote_id)


def _first_shard(layout: EngineLayout) -> Shard:
    shards = list(_shards(layout))
    return next((shard for shard in shards if shard.array.tokens is not None), shards[0])


def _shards(layout: EngineLayout) -> Iterator[Shard]:
    for rank in layout.ranks:
        yield from rank.shards


def _block_tokens(shard: Shard) -> int:
    tokens = shard.array.tokens
    return shard.geometry.block_entries * (1 if tokens is None else tokens.tokens_per_entry)
