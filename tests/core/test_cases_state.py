"""Per-request states: sections split by rules of their own, one to five tensors, the running block alone."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.core.array import Axis, DType
from kvweave.core.cache_config import CacheConfig, ConvOrder
from kvweave.core.interval import Interval
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec, MambaSpec, MLAAttentionSpec, StatePart
from kvweave.errors import IncompatibleLayouts
from kvweave.testing.oracle import Oracle, check_plan
from kvweave.testing.requests import Request
from tests.core.engines import BFLOAT16, FLOAT32, engine, faults, mamba2_of, model_of, model_of_groups

PAIRS = [(2, 1), (1, 2), (2, 4), (4, 2), (8, 4), (4, 8)]
ORDERS = [(one, other) for one in ConvOrder for other in ConvOrder]
SPECS = {
    "mamba1": MambaSpec.mamba1(24, 3, 4, BFLOAT16, FLOAT32),
    "mamba2": MambaSpec.mamba2(24, 2, 12, 3, 4, BFLOAT16, FLOAT32),
    "gated delta net": MambaSpec.gdn(12, 24, 2, 3, 4, BFLOAT16, FLOAT32),
    "kimi delta": MambaSpec.kda(24, 2, 4, BFLOAT16, FLOAT32),
}


def settings(order: str) -> CacheConfig:
    return CacheConfig(num_blocks=6, conv_order=order)


@pytest.mark.parametrize("orders", ORDERS, ids=" to ".join)
@pytest.mark.parametrize(("p", "d"), [(4, 2), (2, 3), (1, 4)], ids=str)
@pytest.mark.parametrize("kind", SPECS)
def test_each_conv_section_is_split_by_its_own_rule(kind: str, p: int, d: int, orders: tuple[str, str]) -> None:
    model = model_of(SPECS[kind], group="state")
    assert faults(engine(model, p, settings(orders[0])), engine(model, d, settings(orders[1]))) == []


def test_a_rank_holds_its_share_of_every_section() -> None:
    model = model_of(MambaSpec.mamba2(8, 4, 2, 16, 4, BFLOAT16, FLOAT32), group="state")
    boxes = {shard.array.part: shard.box[0] for shard in engine(model, 4).rank(tp=3).shards}
    assert boxes == {
        "conv.x": Interval(24, 32),
        "conv.b": Interval(16, 32),
        "conv.c": Interval(16, 32),
        "ssm": Interval(6, 8),
    }


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize(("p", "d"), PAIRS, ids=str)
def test_fewer_groups_than_ranks_are_replicated(p: int, d: int, groups: int) -> None:
    model = model_of(mamba2_of(groups, 24), group="state")
    prefill, decode = engine(model, p), engine(model, d)
    assert faults(prefill, decode) == []
    for reads in plan_transfer(prefill, decode).reads.values():
        replicas = {len(read.sources) for read in reads if read.array.part == "conv.b"}
        assert replicas == {max(1, p // groups)}


def test_latent_is_read_once_and_state_from_every_rank_that_has_a_part() -> None:
    model = model_of_groups({"full": [MLAAttentionSpec(4)], "state": [SPECS["kimi delta"]]})
    prefill, decode = engine(model, 4), engine(model, 2)
    assert faults(prefill, decode) == []
    sources = plan_transfer(prefill, decode).sources(decode.rank(tp=1))
    assert len(sources["full"]) == 1
    assert {rank.tp for rank in sources["state"]} == {2, 3}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_layer_has_one_to_five_state_tensors_of_any_dtype(count: int) -> None:
    dtypes = [DType.of(name) for name in ("float32", "fp8_e4m3", "bfloat16", "float64", "uint8")]
    states = tuple(
        StatePart(f"state.{n}", (Axis("head", 12, 12 if n % 2 else 0), Axis("dim", n + 1)), dtypes[n])
        for n in range(count)
    )
    model = model_of(MambaSpec("other", states), group="state")
    assert faults(engine(model, 4), engine(model, 3)) == []


def test_attention_and_state_have_dtypes_of_their_own() -> None:
    model = model_of_groups({"full": [FullAttentionSpec(4, 2)], "state": [SPECS["mamba2"]]})
    quantised = CacheConfig(num_blocks=6, dtype="fp8_e4m3")
    prefill, decode = engine(model, 4, quantised), engine(model, 2, quantised)
    dtypes = {shard.array.part: shard.array.dtype.name for shard in decode.rank().shards}
    assert dtypes["k"] == "fp8_e4m3" and dtypes["conv.x"] == "bfloat16" and dtypes["ssm"] == "float32"
    assert faults(prefill, decode) == []


@pytest.mark.parametrize(("source_scratch", "target_scratch"), [(0, 0), (2, 0), (0, 3), (1, 2)])
def test_only_the_running_block_is_read_and_written(source_scratch: int, target_scratch: int) -> None:
    model = model_of(SPECS["mamba2"], group="state")
    prefill, decode = (
        engine(model, tp, CacheConfig(num_blocks=9, speculative_blocks=scratch))
        for tp, scratch in ((2, source_scratch), (1, target_scratch))
    )
    oracle = Oracle(prefill, decode)
    source = np.array([-1, -1, 3, 7, *range(source_scratch)])
    target = np.array([-1, 8, 5, *range(target_scratch)])
    request = Request(9, 4, {"state": source}, {"state": target})
    assert check_plan(plan_transfer(prefill, decode), request, oracle) == []


def test_sides_of_which_one_speculates_are_refused_by_name() -> None:
    plain, speculating = (
        engine(model_of(MambaSpec.mamba2(4, 1, 1, 2, 4, BFLOAT16, FLOAT32, tokens), group="state")) for tokens in (0, 2)
    )
    with pytest.raises(IncompatibleLayouts, match=r"conv\.x axis 1.*tap of 3.*tap of 5.*speculative tokens"):
        plan_transfer(plain, speculating)
