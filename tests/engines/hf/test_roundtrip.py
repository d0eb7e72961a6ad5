"""What one runner captures and another restores is the whole cache: every family goes on as if nothing had happened."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from kvweave.core.array import CacheArray
from kvweave.core.model import ModelCache
from kvweave.engines.hf.captured import ArrayKey, CapturedArray, CapturedCache
from kvweave.engines.hf.families import FAMILIES
from kvweave.errors import LocalProtocolError

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra hf")

WINDOW_EDGES = (5, 31, 32, 33, 34, 65, 200)
STATE_EDGES = (2, 4, 5, 33, 129)
LENGTHS = {
    "mistral": WINDOW_EDGES,
    "gemma2": WINDOW_EDGES,
    "gemma3": WINDOW_EDGES,
    "gpt-oss": WINDOW_EDGES,
    "llama4": (*WINDOW_EDGES, 64),
    "deepseek-v3.2": (5, 16, 17, 18, 129),
    "deepseek-v4": (2, 4, 5, 31, 33, 34, 127, 128, 129, 130, 200),
    "kimi-linear": STATE_EDGES,
    "qwen3-next": STATE_EDGES,
    "qwen3.5": STATE_EDGES,
    "granite-4": STATE_EDGES,
    "bamba": STATE_EDGES,
    "falcon-h1": STATE_EDGES,
    "nemotron-h": STATE_EDGES,
    "jamba": STATE_EDGES,
    "mamba": STATE_EDGES,
    "falcon-mamba": STATE_EDGES,
    "mamba2": STATE_EDGES,
}
CASES = [(family, length) for family in FAMILIES for length in LENGTHS.get(family, (5, 129))]
NEW_TOKENS = 8


def prompt(length):
    return [random.Random(length + place).randrange(256) for place in range(length)]


def specs_of(model: ModelCache) -> dict[ArrayKey, CacheArray]:
    return {(layer.name, array.part): array for layer in model.layers() for array in layer.spec.arrays()}


def needed_only(captured: CapturedCache, model: ModelCache) -> CapturedCache:
    """The same without the tokens that no longer matter, as they would arrive from another engine."""
    kept = dict(captured.arrays)
    for key, spec in specs_of(model).items():
        if spec.tokens is not None:
            entries = captured.num_tokens // spec.tokens.tokens_per_entry
            first = spec.tokens.reach.first_needed(captured.num_tokens)
            kept[key] = CapturedArray(first, kept[key].rows(first, entries))
    return CapturedCache(captured.num_tokens, kept)


def steps(runner, captured, tokens):
    """The logits behind each of the tokens, one step each."""
    session = runner.restore(captured)
    for token in tokens:
        yield runner.prefill([token], session).logits.numpy()


def tokens_of_transformers(network, tokens):
    """What transformers' own ``generate`` makes of the prompt, computed all at once, up to the end token."""
    text = torch.tensor([tokens])
    made = network.generate(text, attention_mask=torch.ones_like(text), do_sample=False, max_new_tokens=NEW_TOKENS)
    return made[0, len(tokens) :].tolist()


@pytest.mark.parametrize(("family", "length"), CASES, ids=[f"{family}-{length}" for family, length in CASES])
def test_the_split_run_makes_the_tokens_of_one_engine(family, length, prefill_runner, decode_runner):
    source, target, tokens = prefill_runner(family), decode_runner(family), prompt(length)
    captured = needed_only(source.capture(source.prefill(tokens[:-1])), source.model)
    made = target.generate(tokens, NEW_TOKENS, target.restore(captured))
    assert made == source.reference(tokens, NEW_TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_logits_after_a_restore_are_equal_to_the_bit(family, prefill_runner, decode_runner):
    source, target, tokens = prefill_runner(family), decode_runner(family), prompt(100)
    session = source.prefill(tokens[:-1])
    restored = target.restore(source.capture(session))
    source.step(session, tokens[-1])
    target.step(restored, tokens[-1])
    np.testing.assert_array_equal(restored.logits.numpy(), session.logits.numpy())


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_captured_after_a_restore_and_a_step_is_the_same(family, prefill_runner, decode_runner):
    source, target, tokens = prefill_runner(family), decode_runner(family), prompt(130)
    session = source.prefill(tokens[:-1])
    restored = target.restore(source.capture(session))
    source.step(session, tokens[-1])
    target.step(restored, tokens[-1])
    ours = needed_only(target.capture(restored), target.model)
    theirs = needed_only(source.capture(session), source.model)
    for key, array in theirs.arrays.items():
        np.testing.assert_array_equal(ours.arrays[key].data, array.data, err_msg=str(key))


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_arrays_are_those_of_the_specs(family, prefill_runner):
    runner = prefill_runner(family)
    captured = runner.capture(runner.prefill(prompt(131)))
    specs = specs_of(runner.model)
    assert set(captured.arrays) == set(specs)
    for key, spec in specs.items():
        shape = captured.arrays[key].data.shape
        assert (shape[1:] if spec.tokens else shape) == tuple(axis.size for axis in spec.axes), key


@pytest.mark.parametrize("family", FAMILIES)
def test_zeroing_any_array_changes_the_logits(family, prefill_runner, decode_runner):
    source, target, tokens = prefill_runner(family), decode_runner(family), prompt(140)
    captured = source.capture(source.prefill(tokens[:127]))
    right = list(steps(target, captured, tokens[127:]))
    for key, array in captured.arrays.items():
        if array.data.size:
            zeroed = replace(captured, arrays={**captured.arrays, key: replace(array, data=np.zeros_like(array.data))})
            wrong = steps(target, zeroed, tokens[127:])
            assert any(not np.array_equal(ours, theirs) for ours, theirs in zip(wrong, right, strict=False)), key


@pytest.mark.parametrize("family", FAMILIES)
def test_computing_on_behind_a_restored_prefix_makes_the_same_tokens(family, prefill_runner, decode_runner):
    source, target, tokens = prefill_runner(family), decode_runner(family), prompt(101)
    captured = needed_only(source.capture(source.prefill(tokens[:70])), source.model)
    session = target.restore(captured)
    assert target.generate(tokens, NEW_TOKENS, session) == source.reference(tokens, NEW_TOKENS)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_generation_agrees(family, prefill_runner):
    runner, tokens = prefill_runner(family), prompt(70)
    end = runner.network.generation_config.eos_token_id
    assert tokens_of_transformers(runner.network, tokens) == runner.reference(tokens, NEW_TOKENS, [end])


@pytest.mark.parametrize("family", ["llama", "gemma3", "llama4", "deepseek-v4", "qwen3-next", "bamba", "jamba"])
def test_a_prefill_in_chunks_makes_the_same_tokens(family, prefill_runner):
    runner, tokens = prefill_runner(family), prompt(101)
    session = runner.prefill(tokens[:-1], chunk_size=24)
    assert runner.generate(tokens, NEW_TOKENS, session) == runner.reference(tokens, NEW_TOKENS)


def test_a_missing_array_is_named(prefill_runner):
    runner = prefill_runner("llama")
    captured = runner.capture(runner.prefill(prompt(9)))
    arrays = {key: array for key, array in captured.arrays.items() if key != ("model.layers.2.self_attn", "v")}
    with pytest.raises(LocalProtocolError, match=r"model\.layers\.2\.self_attn v: .* deliver it too"):
        runner.restore(replace(captured, arrays=arrays))


def test_missing_window_tokens_are_named(prefill_runner):
    runner = prefill_runner("mistral")
    captured = runner.capture(runner.prefill(prompt(50)))
    short = {key: CapturedArray(20, array.rows(20, 50)) for key, array in captured.arrays.items()}
    with pytest.raises(LocalProtocolError, match=r"\[19, 50\) are needed, \[20, 50\) are there"):
        runner.restore(replace(captured, arrays=short))
