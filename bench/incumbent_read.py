"""vLLM's NixlConnector handling one request: its own functions, called as they are, over plain NIXL agents.

``_read_blocks`` computes the ids and makes the transfer, ``_pop_done_transfers`` finds it done and releases it. What
vLLM's constructor would set and these two look at is set here, as for 61 MLA layers of one cache group.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from kvweave.benchmarks.overhead import Functions
from kvweave.benchmarks.raw_nixl import IncumbentReader
from kvweave.benchmarks.stopwatch import POST, TimedAgent

PEER = "prefill"
OWN = "decode"
REQUEST = "request"


def vllm_functions() -> Functions | None:
    """What ``overhead`` takes; None where vLLM is not installed.

    vLLM is imported before there is any reader. What it imports keeps errors, and with them whatever the functions that
    import it have in hand: an agent among that never ends, and its thread burns a core beside what is measured next.
    """
    if find_spec("vllm") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, which are nothing to who measures
        for name in ("pull_worker", "stats", "tp_mapping"):
            import_module(f"vllm.distributed.kv_transfer.kv_connector.v1.nixl.{name}")
    return _functions


def _functions(reader: IncumbentReader) -> Callable[[Sequence[int], Sequence[int]], float]:
    agent = TimedAgent(reader.agent, only=POST)
    worker = _worker(reader, agent)

    def request(source_blocks: Sequence[int], target_blocks: Sequence[int]) -> float:
        """Seconds outside the post call; the wait for its end is not counted."""
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import ReadSpec

        spec = ReadSpec(0, [list(target_blocks)], [list(source_blocks)])
        agent.reset()
        began = time.perf_counter()
        worker._read_blocks(spec, PEER, REQUEST, REQUEST, reader.own_list, None, reader.peer_list, 1, awaiting_kvs=True)
        made = time.perf_counter() - began - agent.post_seconds
        reader.wait(worker._recving_transfers[REQUEST][0])
        began = time.perf_counter()
        done, failed = worker._pop_done_transfers(worker._recving_transfers)
        if done != {REQUEST} or failed:
            raise RuntimeError(f"NixlConnector's functions: done {done}, failed {failed}")
        return made + time.perf_counter() - began

    return request


def _worker(reader: IncumbentReader, agent: TimedAgent) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

    worker: Any = object.__new__(NixlPullConnectorWorker)
    shape = reader.memory.shape
    peer = SimpleNamespace(remote_block_size=shape.block_size, remote_dcp_size=1, remote_physical_blocks_per_logical=1)
    values = {
        "_has_mamba": False, "_transfer_layer_group_ids": [], "_uses_region_group_mapping": False,
        "_mixed_mem_types": False, "_physical_blocks_per_logical_kv_block": 1, "dcp_size": 1,
        "num_regions": shape.layers, "region_group_ids": [0] * shape.layers,
        "block_len_per_layer": [shape.piece_bytes] * shape.layers,
        "engine_id": OWN, "dst_num_blocks": {PEER: reader.source.num_blocks, OWN: shape.num_blocks},
        "dst_region_num_blocks": {}, "dst_region_group_ids": {}, "dst_uses_region_group_mapping": {PEER: False},
        "kv_cache_config": SimpleNamespace(transfer_groups=[0]), "nixl_wrapper": agent,
        "transfer_topo": SimpleNamespace(get_engine_info={PEER: peer}.get, block_size_ratio={shape.block_size: 1}.get),
        "_recving_transfers": defaultdict(list), "xfer_stats": NixlKVConnectorStats(),
    }  # fmt: skip
    for name, value in values.items():
        setattr(worker, name, value)
    return worker
