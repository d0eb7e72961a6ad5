"""kvweave moves a request's KV cache between LLM engines of different shape.

Describe two engines, check and plan the transfer between them, prove the plan, and turn a request's block tables into
rows of bytes to read::

    model = kvweave.models.load("deepseek-v3")
    prefill = EngineLayout.build(model, ParallelConfig(tp=4), CacheConfig(block_size=16))
    decode = EngineLayout.build(model, ParallelConfig(tp=2), CacheConfig(block_size=128))
    plan = plan_transfer(prefill, decode)
    plan.verify()
"""

from kvweave import models
from kvweave.core.block_table import NULL_BLOCK
from kvweave.core.cache_config import CacheConfig
from kvweave.core.compatibility import check_compatibility
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.mapping import TPMapping, compute_tp_mapping
from kvweave.core.model import get_representative_spec_type
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.topology import RemoteEngine, TransferTopology
from kvweave.errors import IncompatibleLayouts, KVWeaveError, Mismatch
from kvweave.version import __version__

__all__ = [
    "NULL_BLOCK",
    "CacheConfig",
    "EngineLayout",
    "IncompatibleLayouts",
    "Interval",
    "KVWeaveError",
    "Mismatch",
    "ParallelConfig",
    "RankCoordinates",
    "RemoteEngine",
    "TPMapping",
    "TransferPlan",
    "TransferTopology",
    "__version__",
    "check_compatibility",
    "compute_tp_mapping",
    "get_representative_spec_type",
    "models",
    "plan_transfer",
]
