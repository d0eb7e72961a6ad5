"""Recurrent states moved between live tensors: sections, both conv orders, padded pages, replicated states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as MambaKind

import kvweave.core.spec as kv
from tests.integrations.vllm.engines import Engine, check_pair
from tests.integrations.vllm.layers import Heads, Layer, Side, State
from tests.integrations.vllm.pairs import FULL, HALF, whole_of

ATTENTION = Heads(2, head_size=64)


def mamba2(groups: int, **values: Any) -> tuple[Layer, kv.LayerSpec]:
    heads, head, state = 8, 8, 16

    def shapes(calculator: Any, tp: int) -> Any:
        return calculator.mamba2_state_shape(tp, heads * head, groups, heads, head, state, 4)

    layer = State(
        MambaKind.MAMBA2, (heads * head, groups * state, groups * state), 3, (heads, head, state), shapes, groups,
        **values,
    )  # fmt: skip
    return layer, kv.MambaSpec.mamba2(heads, head, groups, state, 4, HALF, FULL)


def gdn(kind: str = "gdn") -> tuple[Layer, kv.LayerSpec]:
    if kind == "kda":
        layer = State(MambaKind.GDN_ATTN, (32, 32, 32), 3, (4, 8, 8), lambda c, tp: c.kda_state_shape(tp, 4, 8))
        return layer, kv.MambaSpec.kda(4, 8, 4, HALF, FULL)
    layer = State(
        MambaKind.GDN_ATTN, (32, 32, 64), 3, (8, 8, 16),
        lambda c, tp: c.gated_delta_net_state_shape(tp, 2, 8, 16, 8, 4),
    )  # fmt: skip
    return layer, kv.MambaSpec.gdn(2, 8, 16, 8, 4, HALF, FULL)


def mamba1() -> tuple[Layer, kv.LayerSpec]:
    layer = State(MambaKind.MAMBA1, (64,), 3, (64, 8), lambda c, tp: c.mamba1_state_shape(tp, 64, 8, 4))
    return layer, kv.MambaSpec.mamba1(64, 8, 4, HALF, FULL)


STATES = {
    "mamba2 with one group": lambda: mamba2(1), "mamba2 with two": lambda: mamba2(2), "gdn": gdn,
    "kda": lambda: gdn("kda"), "mamba1": mamba1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _each_side_has_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's conv order is the process's; here it is the side's whose specs are being made."""
    original = State.spec

    def spec(self: State, side: Side, rank: int) -> Any:
        name = "vllm.model_executor.layers.mamba.mamba_utils.get_conv_state_layout"
        monkeypatch.setattr(name, lambda: side.conv_order)
        return original(self, side, rank)

    monkeypatch.setattr(State, "spec", spec)


def hybrid(state: Layer, side: Side, whole: Any) -> Engine:
    """A state beside an attention layer, in pages of one size."""
    page = int(ATTENTION.spec(side, 0).page_size_bytes)
    padded = replace(state, padded=page) if isinstance(state, State) else state
    model: dict[str, Layer] = {"model.layers.0.mixer": padded, "model.layers.1.self_attn.attn": ATTENTION}
    return Engine(side, model, whole)


def whole_hybrid(known: kv.LayerSpec | None, **extra: Any) -> Any:
    heads = {"model.layers.1.self_attn": kv.FullAttentionSpec(2, 64, dtype=HALF)}
    described = heads | ({} if known is None else {"model.layers.0.mixer": known})
    return whole_of({"model.layers.1.self_attn.attn": ATTENTION}, described, **extra)


@pytest.mark.parametrize("orders", [("SD", "SD"), ("DS", "DS"), ("SD", "DS")], ids="-".join)
@pytest.mark.parametrize("pair", [(2, 1), (1, 2), (2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("kind", list(STATES))
def test_states_beside_attention(kind: str, pair: tuple[int, int], orders: tuple[str, str]) -> None:
    state, known = STATES[kind]()
    if kind in ("mamba2 with two", "gdn") and 4 in pair:
        pytest.skip("vLLM builds no engine of this size: groups or key heads do not divide")
    sides = [Side(tp, conv_order=order, block_size=64) for tp, order in zip(pair, orders, strict=True)]
    check_pair(*(hybrid(state, side, whole_hybrid(known)) for side in sides), 75)


def test_a_cpu_engines_key_major_state_feeds_a_value_major_one() -> None:
    state, known = gdn()
    assert isinstance(state, State)
    prefill = hybrid(replace(state, key_major=True), Side(2, block_size=64), whole_hybrid(known))
    check_pair(prefill, hybrid(state, Side(1, block_size=64), whole_hybrid(known)), 75)


def test_a_short_convolution_is_cut_by_channel() -> None:
    state = State(MambaKind.SHORT_CONV, (64,), 2, (), lambda c, tp: c.short_conv_state_shape(tp, 64, 3))
    whole = whole_hybrid(None, short_conv_channels=64)
    check_pair(hybrid(state, Side(2, block_size=64), whole), hybrid(state, Side(1, block_size=64), whole), 75)


def test_a_replicated_state_is_the_same_on_every_rank() -> None:
    state = State(MambaKind.SHORT_CONV, (64,), 2, (), lambda c, tp: c.short_conv_state_shape(1, 64, 3), replicated=True)
    whole = whole_hybrid(None)
    check_pair(hybrid(state, Side(2, block_size=64), whole), hybrid(state, Side(4, block_size=64), whole), 75)


def test_a_state_after_several_blocks_stands_behind_nulls() -> None:
    state, known = mamba2(1, span=64)
    whole = whole_hybrid(known)
    check_pair(hybrid(state, Side(2, block_size=64), whole), hybrid(state, Side(1, block_size=64), whole), 150)
