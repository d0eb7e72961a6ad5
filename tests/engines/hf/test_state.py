"""Recurrent states of transformers, filled and read again; which axis is which."""

from __future__ import annotations

import pytest

from kvweave.core.spec import MambaSpec
from kvweave.engines.hf.state import StateBridge

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")

PROMPT = list(b"sections of a state")
STATES = ("mamba", "mamba2", "granite-4", "qwen3-next", "kimi-linear")


def first_state(runner):
    return next(layer for layer in runner.model.layers() if isinstance(layer.spec, MambaSpec))


@pytest.mark.parametrize("family", STATES)
def test_what_a_layer_is_filled_with_is_read_again(family, prefill_runner):
    runner = prefill_runner(family)
    layer, captured = first_state(runner), runner.capture(runner.prefill(PROMPT))
    bridge, held = StateBridge(layer.name, layer.spec), runner.start().cache.layers[layer.index]
    bridge.write(held, captured)
    parts = dict(bridge.read(held))
    assert list(parts) == [state.part for state in layer.spec.states]
    assert all((array.data == captured.array(layer.name, part).data).all() for part, array in parts.items())


@pytest.mark.parametrize("family", STATES)
def test_the_oldest_conv_column_is_zero_as_nothing_reads_it_again(family, prefill_runner):
    runner = prefill_runner(family)
    layer, held = first_state(runner), runner.start().cache
    StateBridge(layer.name, layer.spec).write(held.layers[layer.index], runner.capture(runner.prefill(PROMPT)))
    conv = held.layers[layer.index].conv_states[0]
    assert not conv[..., 0].any()
    assert conv[..., 1:].any()


@pytest.mark.parametrize(("family", "turned"), [("mamba2", False), ("qwen3-next", True)])
def test_the_key_axis_of_a_delta_net_comes_last(family, turned, prefill_runner):
    runner = prefill_runner(family)
    layer, session = first_state(runner), runner.prefill(PROMPT)
    held = session.cache.layers[layer.index].recurrent_states[0][0].numpy()
    ssm = runner.capture(session).array(layer.name, "ssm").data
    assert (ssm == (held.transpose(0, 2, 1) if turned else held)).all()
