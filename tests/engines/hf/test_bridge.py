"""Captured parts against what the modules themselves compute: sections, order and norms are what the names say."""

from __future__ import annotations

import pytest

PROMPT = list(b"sections of a state")


def output_of(module, run):
    """What the module put out in the last call of ``run``."""
    seen = []
    hook = module.register_forward_hook(lambda _, __, output: seen.append(output))
    run()
    hook.remove()
    return seen[-1][0].detach().numpy()


def last_tap(captured, layer, *parts):
    return [captured.array(layer, part).data[:, -1] for part in parts]


def test_mamba2_conv_sections_are_x_then_b_then_c(prefill_runner):
    runner = prefill_runner("mamba2")
    mixer, session = runner.network.backbone.layers[1].mixer, runner.start()
    projected = output_of(mixer.in_proj, lambda: runner.prefill(PROMPT, session))[-1]
    x, b, c = last_tap(runner.capture(session), "model.layers.1.mamba", "conv.x", "conv.b", "conv.c")
    assert (x == projected[128:256]).all()
    assert (b == projected[256:304]).all()
    assert (c == projected[304:352]).all()


def test_gated_delta_net_conv_sections_are_q_then_k_then_v(prefill_runner):
    runner = prefill_runner("qwen3.5")
    module, session = runner.network.model.layers[1].linear_attn, runner.start()
    projected = output_of(module.in_proj_qkv, lambda: runner.prefill(PROMPT, session))[-1]
    q, k, v = last_tap(runner.capture(session), "model.layers.1.linear_attn", "conv.q", "conv.k", "conv.v")
    assert (q == projected[:64]).all()
    assert (k == projected[64:128]).all()
    assert (v == projected[128:]).all()


def test_kda_conv_sections_are_those_of_their_projections(prefill_runner):
    runner = prefill_runner("kimi-linear")
    module = runner.network.model.layers[1].self_attn
    for part, projection in (("conv.q", module.q_proj), ("conv.k", module.k_proj), ("conv.v", module.v_proj)):
        session = runner.start()
        projected = output_of(projection, lambda session=session: runner.prefill(PROMPT, session))[-1]
        (column,) = last_tap(runner.capture(session), "model.layers.1.self_attn", part)
        assert (column == projected).all()


@pytest.mark.parametrize("family", ["deepseek-v2", "deepseek-v3", "kimi-k2", "deepseek-v3.2", "kimi-linear"])
def test_the_latent_is_taken_behind_its_norm_and_stands_first(family, prefill_runner):
    runner = prefill_runner(family)
    place = len(runner.network.model.layers) - 1
    attention, session = runner.network.model.layers[place].self_attn, runner.start()
    normed = output_of(attention.kv_a_layernorm, lambda: runner.prefill(PROMPT, session))
    latent = runner.capture(session).array(f"model.layers.{place}.self_attn", "latent").data
    assert (latent[:, :32] == normed).all()


def test_the_rotated_key_part_is_behind_the_latent(prefill_runner):
    runner = prefill_runner("deepseek-v3")
    attention, session = runner.network.model.layers[0].self_attn, runner.start()
    projected = output_of(attention.kv_a_proj_with_mqa, lambda: runner.prefill(PROMPT, session))
    latent = runner.capture(session).array("model.layers.0.self_attn", "latent").data
    assert latent[0, 32:] == pytest.approx([*projected[0, 32::2], *projected[0, 33::2]])
    assert (latent[1, 32:] ** 2).sum() == pytest.approx((projected[1, 32:] ** 2).sum(), rel=1e-5)


def test_an_open_group_lies_in_the_first_slots_and_its_overlap_waits_for_a_closed_one(prefill_runner):
    runner = prefill_runner("deepseek-v4")
    captured = runner.capture(runner.prefill(PROMPT[:3]))
    layer = "model.layers.1.self_attn.compressor"
    assert (captured.array(layer + ".state", "buffer.kv").data[:3] != 0).all()
    assert (captured.array(layer + ".state", "buffer.kv").data[3:] == 0).all()
    assert (captured.array(layer + ".state", "overlap.gate").data == float("-inf")).all()
    assert captured.array(layer, "latent").data.shape == (0, 64)
