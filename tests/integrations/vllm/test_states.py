"""Recurrent states moved between live tensors: sections, both conv orders, padded pages, replicated states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as MambaKind

import kvweave.core.spec as kv
from tests.integrations.vllm.engines import Engine, check_pair
from tests.integrations.vllm.layers import Heads, Latent, Layer, Side, State
from tests.integrations.vllm.pairs import FULL, HALF, whole_of

ATTENTION = Heads(2, head_size=64)


def mamba2(groups: int, **values: Any) -> tuple[State, kv.LayerSpec]:
    heads, head, state = 8, 8, 16

    def shapes(calculator: Any, tp: int) -> Any:
        return calculator.mamba2_state_shape(tp, heads * head, groups, heads, head, state, 4)

    layer = State(
        MambaKind.MAMBA2, (heads * head, groups * state, groups * state), 3, (heads, head, state), shapes, groups,
        **values,
    )  # fmt: skip
    return layer, kv.MambaSpec.mamba2(heads, head, groups, state, 4, HALF, FULL)


def gdn(kind: str = "gdn") -> tuple[State, kv.LayerSpec]:
    if kind == "kda":
        layer = State(MambaKind.GDN_ATTN, (32, 32, 32), 3, (4, 8, 8), lambda c, tp: c.kda_state_shape(tp, 4, 8))
        return layer, kv.MambaSpec.kda(4, 8, 4, HALF, FULL)
    layer = State(
        MambaKind.GDN_ATTN, (32, 32, 64), 3, (8, 8, 16),
        lambda c, tp: c.gated_delta_net_state_shape(tp, 2, 8, 16, 8, 4),
    )  # fmt: skip
    return layer, kv.MambaSpec.gdn(2, 8, 16, 8, 4, HALF, FULL)


def mamba1() -> tuple[State, kv.LayerSpec]:
    layer = State(MambaKind.MAMBA1, (64,), 3, (64, 8), lambda c, tp: c.mamba1_state_shape(tp, 64, 8, 4))
    return layer, kv.MambaSpec.mamba1(64, 8, 4, HALF, FULL)


STATES = {
    "mamba2 with one group": lambda: mamba2(1), "mamba2 with two": lambda: mamba2(2),
    "mamba2 with four": lambda: mamba2(4), "gdn": gdn, "kda": lambda: gdn("kda"), "mamba1": mamba1,
}  # fmt: skip


SMALL = ("mamba2 with two", "gdn")
"""Their two groups or key heads fit no four tensor ranks in vLLM."""
KINDS = [
    (kind, pair)
    for kind in STATES
    for pair in ((2, 1), (1, 2), (2, 2), (4, 2), (2, 4))
    if 4 not in pair or kind not in SMALL
]


@pytest.fixture(autouse=True)
def _each_side_has_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's conv order is the process's; here it is the side's whose specs are being made."""
    original = State.spec

    def spec(self: State, side: Side, rank: int) -> Any:
        name = "vllm.model_executor.layers.mamba.mamba_utils.get_conv_state_layout"
        monkeypatch.setattr(name, lambda: side.conv_order)
        return original(self, side, rank)

    monkeypatch.setattr(State, "spec", spec)


def hybrid(state: State, side: Side, whole: Any, attention: Layer = ATTENTION) -> Engine:
    """A state beside an attention layer, in pages of one size."""
    padded = replace(state, padded=int(attention.spec(side, 0).page_size_bytes))
    return Engine(side, {"model.layers.0.mixer": padded, "model.layers.1.self_attn.attn": attention}, whole)


def whole_hybrid(known: kv.LayerSpec | None, **extra: Any) -> Any:
    heads = {"model.layers.1.self_attn": kv.FullAttentionSpec(2, 64, dtype=HALF)}
    described = heads | ({} if known is None else {"model.layers.0.mixer": known})
    return whole_of({"model.layers.1.self_attn.attn": ATTENTION}, described, **extra)


@pytest.mark.parametrize("orders", [("SD", "SD"), ("DS", "DS"), ("SD", "DS")], ids="-".join)
@pytest.mark.parametrize(("kind", "pair"), KINDS, ids=str)
def test_states_beside_attention(kind: str, pair: tuple[int, int], orders: tuple[str, str]) -> None:
    state, known = STATES[kind]()
    sides = [Side(tp, conv_order=order, block_size=64) for tp, order in zip(pair, orders, strict=True)]
    check_pair(*(hybrid(state, side, whole_hybrid(known)) for side in sides), 75)


LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["mamba2 with one group", "gdn"])
def test_states_in_every_layout(kind: str, layout: str) -> None:
    state, known = STATES[kind]()
    other = Side(1, block_size=64, layout="LBNHC", conv_order="DS")
    engines = [hybrid(state, side, whole_hybrid(known)) for side in (Side(2, block_size=64, layout=layout), other)]
    check_pair(*engines, 75)
    check_pair(*reversed(engines), 75)


@pytest.mark.parametrize("pair", [(4, 2), (2, 4), (2, 1)], ids=str)
def test_delta_nets_beside_latents(pair: tuple[int, int]) -> None:
    """Kimi Linear: the latent is read once, the state from every rank that has a part of it."""
    state, known = gdn("kda")
    latent = Latent(48)
    whole = whole_of({"model.layers.1.self_attn.attn": latent}, {"model.layers.0.self_attn": known})
    engines = [hybrid(state, Side(tp, block_size=64), whole, latent) for tp in pair]
    check_pair(*engines, 75)


def test_several_states_share_the_tensors_of_one_attention_layer() -> None:
    state, known = mamba2(2)
    names = [f"model.layers.{number}.mixer" for number in range(3)]
    described = dict.fromkeys(names, known) | {"model.layers.3.self_attn": kv.FullAttentionSpec(2, 64, dtype=HALF)}
    whole = whole_of({"model.layers.3.self_attn.attn": ATTENTION}, described)
    engines = []
    for side in (Side(2, block_size=64), Side(1, block_size=128)):
        padded = replace(state, padded=int(ATTENTION.spec(side, 0).page_size_bytes))
        model: dict[str, Layer] = dict.fromkeys(names, padded) | {"model.layers.3.self_attn.attn": ATTENTION}
        engines.append(Engine(side, model, whole))
        assert len({tensor.data_ptr() for tensor in engines[-1].tensors[0].values()}) == 1
    check_pair(*engines, 75)


def test_a_cpu_engines_key_major_state_feeds_a_value_major_one() -> None:
    state, known = gdn()
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
