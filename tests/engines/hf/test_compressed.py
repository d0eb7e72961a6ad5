"""Compressed caches of transformers: one entry per closed group, buffers of the open one."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.engines.hf.bridge import bridge_for

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")

PROMPT = [7 * place % 256 for place in range(131)]
COMPRESSOR = "model.layers.1.self_attn.compressor"


@pytest.mark.parametrize("length", [3, 4, 7, 127, 128, 131])
def test_what_a_layer_is_filled_with_is_read_again(length, prefill_runner):
    runner = prefill_runner("deepseek-v4")
    captured, cache = runner.capture(runner.prefill(PROMPT[:length])), runner.start().cache
    layers = [layer for layer in runner.model.layers() if layer.name != f"model.layers.{layer.index}.self_attn"]
    for layer in layers:
        bridge = bridge_for(layer, runner.network.config)
        bridge.write(cache.layers[layer.index], captured)
        for part, array in bridge.read(cache.layers[layer.index]):
            np.testing.assert_array_equal(array.data, captured.array(layer.name, part).data, err_msg=layer.name)


@pytest.mark.parametrize(("length", "entries"), [(3, 0), (4, 1), (7, 1), (8, 2), (131, 32)])
def test_an_entry_exists_once_its_group_is_closed(length, entries, prefill_runner):
    runner = prefill_runner("deepseek-v4")
    captured = runner.capture(runner.prefill(PROMPT[:length]))
    assert len(captured.array(COMPRESSOR, "latent").data) == entries


@pytest.mark.parametrize("length", [3, 5, 8])
def test_the_buffer_holds_the_open_group_and_zeros(length, prefill_runner):
    runner = prefill_runner("deepseek-v4")
    buffer = runner.capture(runner.prefill(PROMPT[:length])).array(f"{COMPRESSOR}.state", "buffer.kv").data
    assert buffer[: length % 4].all()
    assert not buffer[length % 4 :].any()
