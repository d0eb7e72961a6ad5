"""All workers' descriptions joined to the engine's layout, in the scheduler's process.

Workers hand theirs over as vLLM's handshake metadata (``get_handshake_metadata``), which the engine core collects and
gives to the scheduler's connector (``set_xfer_handshake_metadata_pp_aware``). Pipeline stages are what the workers
hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvweave.core.array import CacheArray
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.spec import StatedArraysSpec
from kvweave.errors import ConfigurationError, LayoutError
from kvweave.integrations.vllm.layer_facts import conv_order, read_facts
from kvweave.integrations.vllm.layout import RankDescription, Worker, group_name
from kvweave.integrations.vllm.whole_model import read_model


def read_parallel(vllm_config: Any) -> ParallelConfig:
    """The engine's parallel sizes; every data parallel rank is an engine of its own.

    Raises ``ConfigurationError`` for pcp without dcp, where vLLM keys the workers' descriptions by (pp, tp) alone and
    so keeps one of each pcp group's (``get_kv_connector_handshake_metadata``).
    """
    parallel = vllm_config.parallel_config
    if parallel.prefill_context_parallel_size > 1 and parallel.decode_context_parallel_size == 1:
        raise ConfigurationError(
            f"prefill_context_parallel_size: {parallel.prefill_context_parallel_size} without decode context "
            "parallelism; vLLM hands over one description per tensor rank only: set "
            f"--decode-context-parallel-size {parallel.prefill_context_parallel_size}, or leave prefill context away"
        )
    return ParallelConfig(
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        dcp=parallel.decode_context_parallel_size,
        pcp=parallel.prefill_context_parallel_size,
        interleave=parallel.cp_kv_cache_interleave_size,
    )


def read_worker(vllm_config: Any, kv_cache_config: Any) -> Worker:
    """What this worker process knows of itself; call it once its layers are built and its groups initialised."""
    from vllm.distributed.parallel_state import get_pcp_group, get_pp_group, get_tp_group

    start, stop = vllm_config.model_config.get_layers_start_end_indices(vllm_config.parallel_config)
    coordinates = RankCoordinates(
        get_pp_group().rank_in_group, get_pcp_group().rank_in_group, get_tp_group().rank_in_group
    )
    return Worker(
        read_parallel(vllm_config), coordinates, Interval(start, stop), read_model(vllm_config),
        read_facts(vllm_config, kv_cache_config), conv_order(),
    )  # fmt: skip


def join_ranks(descriptions: Iterable[RankDescription], name: str, fingerprint: str = "") -> EngineLayout:
    """The engine of these workers.

    Raises ``LayoutError`` when a rank is missing or twice, or when workers contradict one another.
    """
    ranks = sorted(descriptions, key=lambda description: description.rank.coordinates)
    if not ranks:
        raise LayoutError("engine: no worker described itself; the connector's workers have not been registered")
    for description in ranks:
        if description.parallel != ranks[0].parallel:
            raise LayoutError(
                f"{description.rank.coordinates}: parallel sizes {description.parallel}, another rank has "
                f"{ranks[0].parallel}; start all workers of an engine with the same sizes"
            )
    stages = _stages(ranks)
    parallel = replace(ranks[0].parallel, stage_layers=tuple(len(stage) for stage in stages))
    model = ModelCache(name, stages[-1].stop, _stated(_groups(ranks), ranks), fingerprint)
    return EngineLayout(model, parallel, tuple(description.rank for description in ranks))


def _stated(groups: tuple[KVCacheGroup, ...], ranks: list[RankDescription]) -> tuple[KVCacheGroup, ...]:
    """The layers with the arrays that the workers hold, in the pieces in which vLLM's kernels keep them."""
    held: dict[str, dict[str, CacheArray]] = defaultdict(dict)
    for description in ranks:
        for shard in description.rank.shards:
            for layer in shard.layers:
                held[layer].setdefault(shard.array.part, shard.array)
    return tuple(
        replace(
            group,
            layers=tuple(
                replace(layer, spec=StatedArraysSpec(tuple(held[layer.name].values()))) for layer in group.layers
            ),
        )
        for group in groups
    )


def _stages(ranks: list[RankDescription]) -> list[Interval]:
    """The decoder layers of each stage, which must follow one another from layer 0."""
    stages: dict[int, Interval] = {}
    for description in ranks:
        stage = stages.setdefault(description.rank.coordinates.pp, description.stage)
        if stage != description.stage:
            raise LayoutError(
                f"{description.rank.coordinates}: layers {description.stage}, another rank of the stage has {stage}"
            )
    ordered = [stages[number] for number in sorted(stages)]
    starts = [0, *(stage.stop for stage in ordered[:-1])]
    if [stage.start for stage in ordered] != starts:
        raise LayoutError(f"engine: stages {', '.join(map(str, ordered))} do not follow one another from layer 0")
    return ordered


def _groups(ranks: list[RankDescription]) -> tuple[KVCacheGroup, ...]:
    """The layers of all ranks by group, each once; what two ranks say of a layer must be the same."""
    members: dict[int, dict[str, CacheLayer]] = defaultdict(dict)
    for description in ranks:
        for number, layer in description.layers:
            known = members[number].setdefault(layer.name, layer)
            if known != layer:
                raise LayoutError(
                    f"{description.rank.coordinates}: {layer.name} caches {layer.spec}, another rank says {known.spec}"
                )
    return tuple(KVCacheGroup(group_name(number), tuple(members[number].values())) for number in sorted(members))
