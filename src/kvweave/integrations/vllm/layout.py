"""One worker's memory in kvweave's words: the live tensors and vLLM's cache configuration to a ``RankLayout``.

Every layer is taken by its own spec. Cache groups keep vLLM's order and become the block tables ``group.0``,
``group.1``, and so on; vLLM lays groups over one another in one allocation, so block ids of all groups are of one pool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvweave.core.array import CacheArray
from kvweave.core.interval import Box, Interval
from kvweave.core.layout import Geometry, Place, RankLayout, Shard
from kvweave.core.model import CacheLayer
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.sharding import box_of, token_share
from kvweave.core.spec import CircularBufferSpec, LayerSpec, MambaSpec
from kvweave.core.tokens import TokenShare
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.interior import Page, Placement, choose_interior, place_layer
from kvweave.integrations.vllm.layer_facts import LayerFacts, layer_specs
from kvweave.integrations.vllm.specs import refuse_spec, translate_spec
from kvweave.integrations.vllm.states import place_ring, place_state
from kvweave.integrations.vllm.tensor_view import TensorView, merge_regions, place_in
from kvweave.integrations.vllm.whole_model import WholeModel


@dataclass(frozen=True, slots=True)
class Worker:
    """Where a worker stands and what it knows beside its tensors.

    ``stage`` are the decoder layers of its pipeline stage; ``conv_order`` is "SD" or "DS".
    """

    parallel: ParallelConfig
    coordinates: RankCoordinates
    stage: Interval
    whole: WholeModel
    facts: Mapping[str, LayerFacts]
    conv_order: str = "SD"


@dataclass(frozen=True, slots=True)
class RankDescription:
    """What a worker tells its engine: its memory, the layers in it with the number of their group, its stage."""

    parallel: ParallelConfig
    stage: Interval
    layers: tuple[tuple[int, CacheLayer], ...]
    rank: RankLayout


_Kind = tuple[CacheArray, str, Box, TokenShare | None, Geometry, int]


def group_name(number: int) -> str:
    """The name of a cache group's block table."""
    return f"group.{number}"


def refuse_configuration(kv_cache_config: Any) -> None:
    """Raises ``ConfigurationError`` for groups or specs that cannot be transferred; needs no tensors."""
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        if not group.enable_kv_transfer or group.host_resident:
            raise ConfigurationError(
                f"cache group {number}: HiSparse keeps it on the host or beside it, which cannot be transferred; "
                "turn HiSparse off"
            )
    for layer, spec in layer_specs(kv_cache_config).items():
        refuse_spec(layer, spec)


def describe_rank(kv_caches: Mapping[str, Any], kv_cache_config: Any, worker: Worker) -> RankDescription:
    """The description of a worker's memory, as ``register_kv_caches`` hands it over.

    Raises ``ConfigurationError`` or ``LayoutError`` that names the layer, for whatever cannot be transferred.
    """
    refuse_configuration(kv_cache_config)
    layers = list(_own_layers(kv_caches, kv_cache_config, worker))
    views = {layer: TensorView.of(layer, kv_caches[layer]) for layer, _, _ in layers}
    regions = merge_regions(views.values())
    shards: dict[_Kind, list[Place]] = defaultdict(list)
    described = []
    for layer, group, spec in layers:
        layer_spec, placements = _translate(layer, spec, views[layer], kv_cache_config.num_blocks, worker)
        described.append((group, CacheLayer(layer, worker.whole.decoder_index(layer), layer_spec)))
        region, offset = place_in(regions, views[layer])
        for placement in placements:
            kind = _kind(placement, group, kv_cache_config.num_blocks, worker)
            shards[kind].append(Place(layer, region, offset + placement.offset))
    rank = RankLayout(worker.coordinates, regions, tuple(_shard(kind, places) for kind, places in shards.items()))
    return RankDescription(worker.parallel, worker.stage, tuple(described), rank)


def _own_layers(kv_caches: Mapping[str, Any], kv_cache_config: Any, worker: Worker) -> Iterator[tuple[str, int, Any]]:
    """Layers that keep a cache of their own, with group number and spec; not those that read another layer's."""
    specs = layer_specs(kv_cache_config)
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        for layer in group.layer_names:
            facts = worker.facts.get(layer)
            if layer not in specs or (facts is not None and facts.shares_with):
                continue
            if facts is None or layer not in kv_caches:
                missing = "attention layer" if facts is None else "tensor"
                raise ConfigurationError(f"{layer}: vLLM's cache configuration names it, but it has no {missing}")
            yield layer, number, specs[layer]


def _translate(
    layer: str, spec: Any, view: TensorView, num_blocks: int, worker: Worker
) -> tuple[LayerSpec, list[Placement]]:
    facts = worker.facts[layer]
    layer_spec = translate_spec(layer, spec, worker.whole, facts, worker.parallel.tp, worker.conv_order)
    page = Page(layer, view, view.kernel_blocks(layer, num_blocks))
    if isinstance(layer_spec, MambaSpec):
        shapes = tuple(tuple(shape) for shape in spec.shapes)
        return layer_spec, place_state(
            page, layer_spec, shapes, worker.conv_order, worker.parallel, worker.coordinates, key_major=facts.key_major
        )
    if isinstance(layer_spec, CircularBufferSpec):
        return layer_spec, place_ring(page, layer_spec)
    return layer_spec, place_layer(page, spec, layer_spec, choose_interior(layer, spec, facts), facts)


def _kind(placement: Placement, group: int, num_blocks: int, worker: Worker) -> _Kind:
    array = placement.array
    box = box_of(array, worker.parallel, worker.coordinates)
    share = token_share(array, worker.parallel, worker.coordinates)
    return array, group_name(group), box, share, placement.geometry, num_blocks


def _shard(kind: _Kind, places: list[Place]) -> Shard:
    return Shard(*kind, tuple(places))
