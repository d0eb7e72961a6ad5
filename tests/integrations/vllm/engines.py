"""Two engines whose memory vLLM's own functions lay out, a request moved between them, and memory as it must be.

``Engine`` groups the layers, makes the cache configuration and allocates the tensors with vLLM's functions, for every
rank. ``moved`` copies the rows of kvweave's plan byte by byte between the live tensors. The target must then be equal,
byte for byte and over the whole allocation, to one into which the same tokens were written in vLLM's own terms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.core.kv_cache_utils import (
    _project_kv_cache_groups_to_worker,
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
)
from vllm.v1.kv_cache_interface import CircularBufferSpec, KVCacheGroupSpec, MambaSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

import kvweave as kw
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.integrations.vllm.block_ids import BlockIds
from kvweave.integrations.vllm.engine import join_ranks
from kvweave.integrations.vllm.layer_facts import layer_specs
from kvweave.integrations.vllm.layout import Worker, describe_rank
from kvweave.integrations.vllm.whole_model import WholeModel
from tests.integrations.vllm.layers import Layer, Side

Model = Mapping[str, Layer]
SOURCE_UNWRITTEN, TARGET_UNWRITTEN = 0x55, 0x2A
"""Bytes of fresh memory, not the same on both sides: padding or a neighbour's slot that is copied is seen."""


@dataclass
class Engine:
    """An engine of that shape serving that model. ``stages`` are decoder layers per pipeline stage."""

    side: Side
    model: Model
    whole: WholeModel
    stages: tuple[int, ...] = ()
    configs: list[Any] = field(init=False)
    tensors: list[dict[str, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        groups = self._groups()
        self.configs = [self._config(groups, stage) for stage in self._intervals()]
        layout = KVCacheLayout[self.side.layout]
        self.tensors = [
            allocate_kv_cache(self.configs[rank // self.side.tp], torch.device("cpu"), layout, self._kernel_blocks())
            for rank in range(self.side.pp * self.side.tp)
        ]

    def description(self, rank: int) -> Any:
        stage = self._intervals()[rank // self.side.tp]
        facts = {name: layer.facts(self.side) for name, layer in self.model.items()}
        worker = Worker(
            ParallelConfig(self.side.tp, self.side.pp, self.side.dcp, interleave=self.side.interleave),
            RankCoordinates(rank // self.side.tp, 0, rank % self.side.tp), stage, self.whole, facts,
            self.side.conv_order,
        )  # fmt: skip
        return describe_rank(self.tensors[rank], self.configs[rank // self.side.tp], worker)

    @cached_property
    def layout(self) -> EngineLayout:
        return join_ranks([self.description(rank) for rank in range(len(self.tensors))], "tiny")

    def block_ids(self, num_tokens: int, first: int = 1, null_tokens: Mapping[int, int] | None = None) -> list[Any]:
        """A request's ids per group, none shared between groups; blocks wholly before ``null_tokens`` are null."""
        free = iter(np.random.default_rng(first).permutation(np.arange(1, self.side.num_blocks)).tolist())
        found = []
        for number, group in enumerate(self.configs[0].kv_cache_groups):
            spec = group.kv_cache_spec
            if isinstance(spec, MambaSpec | CircularBufferSpec):
                count = 1 if isinstance(spec, CircularBufferSpec) else -(-num_tokens // spec.block_size)
                found.append([0] * (count - 1) + [next(free)])
                continue
            span = spec.block_size * (self.side.dcp if spec.dcp_sharded else 1)
            null = (null_tokens or {}).get(number, 0) // span
            found.append([0] * null + [next(free) for _ in range(-(-num_tokens // span) - null)])
        return found

    def write(self, block_ids: list[Any], tokens: Any, num_tokens: int) -> None:
        """The labels of these tokens, on every rank."""
        for rank, tensors in enumerate(self.tensors):
            config = self.configs[rank // self.side.tp]
            specs = layer_specs(config)
            for number, group in enumerate(config.kv_cache_groups):
                for name in group.layer_names:
                    side = replace(self.side, block_size=specs[name].block_size)
                    whole = self.model[name].whole(num_tokens, seed=sum(name.encode()))
                    self.model[name].write(tensors[name], side, rank, block_ids[number], tokens, whole)

    def memory(self, rank: int) -> torch.Tensor:
        tensor = next(iter(self.tensors[rank].values()))
        return torch.empty(0, dtype=torch.int8).set_(tensor.untyped_storage())

    def tables(self, block_ids: list[Any], num_tokens: int) -> Any:
        return BlockIds.of(self.configs[0]).tables(block_ids, num_tokens)

    def _groups(self) -> list[KVCacheGroupSpec]:
        return get_kv_cache_groups(self._vllm_config(), self._specs(self.model))

    def _specs(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.model[name].spec(self.side, 0) for name in names}

    def _config(self, groups: list[KVCacheGroupSpec], stage: Interval) -> Any:
        names = [name for name in self.model if self.whole.decoder_index(name) in range(stage.start, stage.stop)]
        mine = _project_kv_cache_groups_to_worker(groups, self._specs(names))
        return get_kv_cache_config_from_groups(self._vllm_config(), mine, available_memory=1 << 40)

    def _intervals(self) -> list[Interval]:
        counts = self.stages or (self.whole.num_layers,)
        return [Interval(sum(counts[:number]), sum(counts[: number + 1])) for number in range(len(counts))]

    def _kernel_blocks(self) -> list[int] | None:
        if self.side.kernel_block is None:
            return None
        return [
            group.kv_cache_spec.block_size
            if isinstance(group.kv_cache_spec, MambaSpec)
            else min(self.side.kernel_block, group.kv_cache_spec.block_size)
            for group in self._groups()
        ]

    def _vllm_config(self) -> Any:
        cache = SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[self.side.layout], prefix_cache_retention_interval=None,
            num_gpu_blocks_override=self.side.num_blocks, mamba_cache_mode="none", block_size=self.side.block_size,
        )  # fmt: skip
        return SimpleNamespace(
            cache_config=cache, speculative_config=None, model_config=None,
            attention_config=SimpleNamespace(hisparse_config=None),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=not self.side.hybrid_manager),
            parallel_config=SimpleNamespace(decode_context_parallel_size=self.side.dcp),
        )  # fmt: skip


def check_pair(
    prefill: Engine, decode: Engine, num_tokens: int, start_token: int = 0, null_tokens: Mapping[int, int] | None = None
) -> None:
    """Moves a request and compares the whole target memory with one that was written in vLLM's own terms."""
    source, target = prefill.block_ids(num_tokens), decode.block_ids(num_tokens, 2, null_tokens)
    wanted = Engine(decode.side, decode.model, decode.whole, decode.stages)
    for engine, unwritten in ((prefill, SOURCE_UNWRITTEN), (decode, TARGET_UNWRITTEN), (wanted, TARGET_UNWRITTEN)):
        for rank in range(len(engine.tensors)):
            engine.memory(rank).fill_(unwritten)
    prefill.write(source, np.arange(num_tokens), num_tokens)
    plan = kw.plan_transfer(prefill.layout, decode.layout)
    report = plan.verify()
    assert report.ok, report
    for rank in decode.layout.ranks:
        rows = plan.descriptors(
            rank, prefill.tables(source, num_tokens), decode.tables(target, num_tokens), num_tokens, start_token
        )
        for part in rows.values():
            for read, written, nbytes in zip(part.source_address, part.target_address, part.nbytes, strict=True):
                ctypes.memmove(int(written), int(read), int(nbytes))
    wanted.write(target, np.arange(start_token, num_tokens), num_tokens)
    for rank in range(len(decode.tensors)):
        wrong = int((decode.memory(rank) != wanted.memory(rank)).sum())
        assert not wrong, f"rank {rank}: {wrong} bytes differ from what vLLM would have written"
        assert int((wanted.memory(rank) != TARGET_UNWRITTEN).sum()), "nothing was written"
