"""Attention caches of transformers, filled and read again: windows, chunks, shared and latent rows."""

from __future__ import annotations

import pytest

from kvweave.engines.hf.bridge import bridge_for

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")

PROMPT = [7 * place % 256 for place in range(70)]


def layer_of(runner, group, part):
    """The first layer of a group whose spec has that part."""
    layers = next(found.layers for found in runner.model.groups if found.name == group)
    return next(layer for layer in layers if layer.spec.arrays()[0].part == part)


@pytest.mark.parametrize(
    ("family", "group", "part"),
    [
        ("llama", "full", "k"),
        ("mistral", "window.32", "k"),
        ("llama4", "chunk.32", "k"),
        ("deepseek-v3", "full", "latent"),
        ("deepseek-v3.2", "full", "indexer"),
        ("deepseek-v4", "window.32", "latent"),
    ],
    ids=lambda value: value,
)
def test_what_a_layer_is_filled_with_is_read_again(family, group, part, prefill_runner):
    runner = prefill_runner(family)
    layer = layer_of(runner, group, part)
    bridge, captured = bridge_for(layer, runner.network.config), runner.capture(runner.prefill(PROMPT))
    held = runner.start().cache.layers[layer.index]
    bridge.write(held, captured)
    for name, array in bridge.read(held):
        sent = captured.array(layer.name, name)
        first = layer.spec.arrays()[0].tokens.reach.first_needed(len(PROMPT))
        assert (array.rows(first, len(PROMPT)) == sent.rows(first, len(PROMPT))).all()


def test_a_window_keeps_the_tokens_that_the_next_one_looks_at(prefill_runner):
    runner = prefill_runner("mistral")
    array = runner.capture(runner.prefill(PROMPT)).array("model.layers.0.self_attn", "k")
    assert (array.first_entry, len(array.data)) == (70 - 31, 31)


def test_behind_the_start_of_a_chunk_the_older_tokens_are_zeros(prefill_runner):
    runner = prefill_runner("llama4")
    layer = layer_of(runner, "chunk.32", "k")
    held = runner.start().cache.layers[layer.index]
    bridge_for(layer, runner.network.config).write(held, runner.capture(runner.prefill(PROMPT)))
    assert held.keys.shape[2] == 31
    assert not held.keys[:, :, : 31 - 6].any()
    assert held.keys[:, :, 31 - 6 :].all()
