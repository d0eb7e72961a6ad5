"""vLLM's own functions, called as they are. Nothing here computes: it builds their arguments and runs their results.

vLLM is imported inside functions, so that these files can be read where it is not installed.
"""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import kvweave.core.spec as kv
from tests.parity.cases import Case

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
Labels = np.ndarray


def load() -> SimpleNamespace:
    """The modules of the installed vLLM that decide who reads what."""
    os.environ["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"  # its NIXL connector accepts no other
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    names = {
        "utils": f"{CONNECTOR}.utils",
        "mapping": f"{CONNECTOR}.v1.nixl.tp_mapping",
        "nixl": f"{CONNECTOR}.v1.nixl.utils",
        "worker": f"{CONNECTOR}.v1.nixl.base_worker",
        "conv": f"{CONNECTOR}.v1.ssm_conv_transfer_utils",
        "specs": "vllm.v1.kv_cache_interface",
        "shapes": "vllm.model_executor.layers.mamba.mamba_utils",
        "backends": "vllm.v1.attention.backends.registry",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SimpleNamespace(**{name: importlib.import_module(module) for name, module in names.items()})


def spec_type(vllm: SimpleNamespace, group: kv.LayerSpec | kv.UniformTypeKVCacheSpecs) -> type:
    """The vLLM type of a group; a uniform group's is that of its first layer, as vLLM takes it."""
    if isinstance(group, kv.UniformTypeKVCacheSpecs):
        group = next(iter(group.kv_cache_specs.values()))
    windowed_latent = isinstance(group, kv.MLAAttentionSpec) and group.sliding_window is not None
    return getattr(vllm.specs, "SlidingWindowMLASpec" if windowed_latent else type(group).__name__)


def topology(vllm: SimpleNamespace, case: Case, tp: int, rank: int, block_size: int = 16, dcp: int = 1) -> Any:
    """vLLM's topology of one decode rank."""
    return vllm.utils.TransferTopology(
        tp_rank=rank, tp_size=tp, block_size=block_size, engine_id="decode", is_mla=case.is_mla,
        is_mamba=case.state_shapes is not None, total_num_kv_heads=case.num_kv_heads, attn_backends=[], dcp_size=dcp,
    )  # fmt: skip


def mapping(vllm: SimpleNamespace, case: Case, pair: tuple[int, int], rank: int, dcp: tuple[int, int] = (1, 1)) -> Any:
    """vLLM's mapping of one decode rank onto a prefill engine."""
    types = tuple(spec_type(vllm, group) for group in case.groups)
    return vllm.mapping.compute_tp_mapping(topology(vllm, case, pair[1], rank, dcp=dcp[1]), pair[0], types, dcp[0])


@dataclass(frozen=True)
class Regions:
    """One rank's memory as vLLM's connector sees it: a page per block; a hybrid's groups share one region."""

    shared: bool
    block_bytes: tuple[int, ...]
    strides: tuple[int, ...]
    ssm_sizes: tuple[int, int]

    @staticmethod
    def of(vllm: SimpleNamespace, case: Case, tp: int, block_size: int) -> Regions:
        state = state_spec(vllm, case, tp)
        attention = [group for group in case.groups if not isinstance(group, kv.MambaSpec)]
        pages = tuple(attention_bytes(group, tp, block_size) for group in attention)
        if state is None:
            return Regions(False, pages, pages, (0, 0))
        split = vllm.conv.derive_mamba_conv_split(state, tp)
        return Regions(True, pages, (max(pages[0], state.page_size_bytes),), split.ssm_sizes)

    def memory(self, num_blocks: int) -> list[Labels]:
        """Empty memory: one label per byte, -1 where nothing was written."""
        return [np.full((num_blocks, stride), -1, dtype=np.int64) for stride in self.strides]


def attention_bytes(group: Any, tp: int, block_size: int) -> int:
    """Bytes of one block on one rank: heads of this rank x tokens x content."""
    if isinstance(group, kv.MLAAttentionSpec):
        return block_size * group.head_size * group.dtype.nbytes
    return max(1, group.num_kv_heads // tp) * block_size * 2 * group.head_size * group.dtype.nbytes


def state_spec(vllm: SimpleNamespace, case: Case, tp: int) -> Any:
    """The case's state as vLLM describes it at that tp; None without one."""
    if case.state_shapes is None:
        return None
    torch = importlib.import_module("torch")
    kind = vllm.backends.MambaAttentionBackendEnum[case.mamba_type]
    shapes = case.state_shapes(vllm.shapes.MambaStateShapeCalculator, tp)
    return vllm.specs.MambaSpec(block_size=16, shapes=shapes, dtypes=(torch.bfloat16, torch.float32), mamba_type=kind)


def worker(vllm: SimpleNamespace, case: Case, tp: int, rank: int, block_size: int, num_blocks: int) -> Any:
    """vLLM's worker of one decode rank, past its constructor, which would start NIXL."""

    class Worker(vllm.worker.NixlBaseConnectorWorker):  # type: ignore[misc, name-defined]
        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

        def __del__(self) -> None:
            """Nothing was started, so there is nothing to shut down."""

    regions = Regions.of(vllm, case, tp, block_size)
    count = len(regions.block_bytes)
    state = state_spec(vllm, case, tp)
    return Worker(
        transfer_topo=topology(vllm, case, tp, rank, block_size), engine_id="decode", tp_rank=rank, device_id=0,
        use_mla=case.is_mla, block_size=block_size, num_blocks=num_blocks, _logical_num_blocks=num_blocks,
        block_len_per_layer=list(regions.block_bytes), block_stride_per_layer=list(regions.strides),
        region_num_blocks=[num_blocks] * count, num_regions=count, num_descs=num_blocks * count,
        region_group_ids=list(range(count)), _uses_region_group_mapping=count > 1,
        _physical_blocks_per_logical_kv_block=1,
        _group_spec_types=tuple(spec_type(vllm, group) for group in case.groups),
        _region_is_mla=[isinstance(group, kv.MLAAttentionSpec) for group in case.groups[:count]],
        _has_mamba=state is not None, _conv_decomp=vllm.conv.derive_mamba_conv_split(state, tp) if state else None,
        _mamba_ssm_size=regions.ssm_sizes, _ssm_region_indices=[], _scratch_region_indices=[], _ple_region_index=None,
        _ple_group_index=None, _transfer_layer_region_indices=(), _transfer_layer_group_ids=(),
    )  # fmt: skip


@dataclass(frozen=True)
class Transfer:
    """One request between two engines: block tables per group on either side, blocks per engine."""

    pair: tuple[int, int]
    block_sizes: tuple[int, int]
    num_blocks: int
    source_blocks: tuple[list[int], ...]
    target_blocks: tuple[list[int], ...]


def run(vllm: SimpleNamespace, case: Case, transfer: Transfer, rank: int, sources: list[list[Labels]]) -> list[Labels]:
    """One decode rank's memory after the reads that vLLM's connector would post, from ``sources`` per prefill rank."""
    prefill_tp, decode_tp = transfer.pair
    prefill_block, decode_block = transfer.block_sizes
    local = worker(vllm, case, decode_tp, rank, decode_block, transfer.num_blocks)
    remote = Regions.of(vllm, case, prefill_tp, prefill_block)
    info = vllm.utils.EngineTransferInfo(
        remote_tp_size=prefill_tp, remote_block_len=remote.block_bytes[0], remote_block_size=prefill_block,
        remote_physical_blocks_per_logical=1,
    )  # fmt: skip
    local.transfer_topo.register_remote_engine("prefill", info)
    plan = mapping(vllm, case, transfer.pair, rank)
    ratio = local.transfer_topo.block_size_ratio(prefill_block)
    tp_ratio = local.transfer_topo.tp_ratio(prefill_tp)
    memory = Regions.of(vllm, case, decode_tp, decode_block).memory(transfer.num_blocks)
    local_rows = _local_rows(local, plan, tp_ratio, ratio, _addresses(memory))
    for number, source_rank in enumerate(plan.all_source_ranks):
        blocks = [
            [
                list(ids) if source_rank in ranks else []
                for ids, ranks in zip(table, plan.source_ranks_per_group, strict=True)
            ]
            for table in (transfer.target_blocks, transfer.source_blocks)
        ]
        if ratio > 1:
            blocks = list(local._map_block_ids_for_block_size_ratio(*blocks, ratio))
        remote_rows = _remote_rows(
            local, plan, remote, transfer.num_blocks, tp_ratio, ratio, info, sources[source_rank]
        )
        ids = [
            local._compute_desc_ids(table, transfer.num_blocks, scale, 1)
            for table, scale in zip(blocks, (ratio, None), strict=True)
        ]
        rows = local_rows[number if len(local_rows) > 1 else 0]
        _copy(sources[source_rank], remote_rows[ids[1]], memory, np.asarray(rows)[ids[0]])
    if ratio > 1 and isinstance(case.groups[0], kv.FullAttentionSpec):
        pages = memory[0][:, : local.block_len_per_layer[0]]
        _join_blocks(vllm, pages, case.groups[0], decode_tp, transfer.target_blocks[0], ratio)
    return memory


def _join_blocks(
    vllm: SimpleNamespace, pages: Labels, spec: kv.FullAttentionSpec, tp: int, blocks: list[int], ratio: int
) -> None:
    """vLLM's own reordering of received blocks that are larger than the sender's, in place."""
    torch = importlib.import_module("torch")
    row = 2 * spec.head_size * spec.dtype.nbytes
    cache = torch.from_numpy(pages.copy()).view(len(pages), max(1, spec.num_kv_heads // tp), -1, row)
    vllm.utils.kv_postprocess_blksize_on_receive(cache, torch.tensor(blocks), ratio)
    pages[:] = cache.numpy().reshape(pages.shape)


def _local_rows(local: Any, plan: Any, tp_ratio: int, ratio: int, addresses: list[int]) -> list[Any]:
    rows = local._build_fa_local(addresses, ratio)
    if local._has_mamba:
        rows = np.concatenate([rows, local._build_mamba_local(addresses)])
    if local._needs_split_local_xfer_handles(tp_ratio, plan):
        return list(local._build_local_splits_from_plan(plan, rows, local.num_descs * ratio, ratio))
    return [rows]


def _remote_rows(
    local: Any, plan: Any, remote: Regions, num_blocks: int, tp_ratio: int, ratio: int, info: Any, source: list[Labels]
) -> np.ndarray:
    described = SimpleNamespace(
        kv_caches_base_addr=_addresses(source), num_blocks=num_blocks, block_lens=list(remote.block_bytes),
        block_strides=list(remote.strides), region_num_blocks=None, device_id=0, ssm_sizes=remote.ssm_sizes,
    )  # fmt: skip
    rows = local._build_fa_remote(plan, described, ratio)
    if local._has_mamba:
        rows = np.concatenate([rows, local._build_mamba_remote(described, tp_ratio, info)])
    return rows


def _addresses(memory: list[Labels]) -> list[int]:
    """Regions one behind the other, so that an address is an index into all of a rank's labels."""
    sizes = [region.size for region in memory]
    return [sum(sizes[:number]) for number in range(len(sizes))]


def _copy(source: list[Labels], source_rows: np.ndarray, target: list[Labels], target_rows: np.ndarray) -> None:
    read = np.concatenate([region.ravel() for region in source])
    starts = _addresses(target)
    assert (source_rows[:, 1] == target_rows[:, 1]).all(), "vLLM's two ends of a read differ in length"
    for (source_address, nbytes, _), (address, _, _) in zip(source_rows.tolist(), target_rows.tolist(), strict=True):
        region = np.searchsorted(starts, address, side="right") - 1
        start = address - starts[region]
        target[region].reshape(-1)[start : start + nbytes] = read[source_address : source_address + nbytes]
