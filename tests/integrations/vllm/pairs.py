"""What the tests of pairs share: a model's configuration, and one request moved between two engines."""

from __future__ import annotations

from typing import Any

import kvweave.core.spec as kv
from kvweave.core.array import DType
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.integrations.vllm.whole_model import WholeModel
from tests.integrations.vllm.engines import Engine, check_pair
from tests.integrations.vllm.layers import Heads, Layer, Side

HALF, FULL = DType.of("bfloat16"), DType.of("float32")


def whole_of(model: dict[str, Layer], known: dict[str, kv.LayerSpec] | None = None, **extra: Any) -> WholeModel:
    """The model's configuration; ``known`` is what ``kvweave.models`` says of its layers."""
    layers = tuple(CacheLayer(name, int(name.split(".")[2]), spec) for name, spec in (known or {}).items())
    cache = ModelCache("tiny", len(model) + 4, (KVCacheGroup("all", layers),)) if layers else None
    number = max(int(name.split(".")[2]) for name in model) + 1
    heads = dict.fromkeys(range(number), 1)
    heads |= {int(name.split(".")[2]): layer.heads for name, layer in model.items() if isinstance(layer, Heads)}
    return WholeModel("tiny", number, cache, "a test says so", tuple(heads.values()), **extra)


def run(model: dict[str, Layer], prefill: Side, decode: Side, num_tokens: int = 75, **options: Any) -> None:
    whole = options.pop("whole", None) or whole_of(model)
    stages = options.pop("stages", ((), ()))
    engines = [Engine(side, model, whole, stage) for side, stage in zip((prefill, decode), stages, strict=True)]
    check_pair(*engines, num_tokens, **options)
