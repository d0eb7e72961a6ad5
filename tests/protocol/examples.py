"""Small engines, references and messages that the tests of this folder share."""

from __future__ import annotations

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.spec import FullAttentionSpec
from kvweave.protocol.effects import Send
from kvweave.protocol.messages import OfferKey
from kvweave.protocol.offer import Guest
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.timing import Timing

ADDRESS = "127.0.0.1:5600"
ENGINE = "prefill-1"
TABLES = {"full": (5, 2, 7)}
TARGETS = {"full": (1, 0, 3)}
TIMING = Timing(handshake_seconds=20, answer_seconds=5, read_seconds=120, renew_fraction=1 / 3, retry_seconds=10)
GUEST = Guest("decode-1", 2)


def small_model(layers: int = 2, heads: int = 4, head_size: int = 8, fingerprint: str = "") -> ModelCache:
    spec = FullAttentionSpec(num_kv_heads=heads, head_size=head_size)
    names = tuple(CacheLayer(f"model.layers.{i}.self_attn", i, spec) for i in range(layers))
    return ModelCache("small", layers, (KVCacheGroup("full", names),), fingerprint)


def small_layout(tp: int = 2, model: ModelCache | None = None, block_size: int = 4) -> EngineLayout:
    cache = CacheConfig(block_size=block_size, num_blocks=8)
    return EngineLayout.build(model or small_model(), ParallelConfig(tp=tp), cache)


def reference(
    request_id: str = "request", generation: int = 1, num_tokens: int = 10, **changes: object
) -> OfferReference:
    fields = {"engine_id": ENGINE, "host": "127.0.0.1", "port": 5600, "tables": TABLES} | changes
    return OfferReference(request_id=request_id, generation=generation, num_tokens=num_tokens, **fields)


def key(request_id: str = "request", generation: int = 1) -> OfferKey:
    return OfferKey(request_id, generation)


def messages(effects: tuple[object, ...]) -> list[object]:
    """The messages among effects."""
    return [effect.message for effect in effects if isinstance(effect, Send)]


def of_type(effects: tuple[object, ...], kind: type) -> list[object]:
    return [effect for effect in effects if isinstance(effect, kind)]
