"""The runner: sessions, what generation asks of them, stop tokens."""

from __future__ import annotations

import pytest

from kvweave.errors import LocalProtocolError

PROMPT = list(b"what the cache holds")


def test_generation_ends_at_a_stop_token(prefill_runner):
    runner = prefill_runner("llama")
    free = runner.generate(PROMPT, 8)
    assert runner.generate(PROMPT, 8, stop_tokens=[free[3]]) == free[: free.index(free[3]) + 1]


def test_a_prompt_of_one_token_needs_no_cache(prefill_runner):
    runner = prefill_runner("gemma3")
    assert runner.reference(PROMPT[:1], 4) == runner.generate(PROMPT[:1], 4)


def test_generation_refuses_a_session_that_has_seen_the_whole_prompt(prefill_runner):
    runner = prefill_runner("llama")
    with pytest.raises(LocalProtocolError, match="has seen 20 tokens of a prompt of 20"):
        runner.generate(PROMPT, 4, runner.prefill(PROMPT))


def test_a_fresh_session_has_no_next_token(prefill_runner):
    with pytest.raises(LocalProtocolError, match="run prefill or step first"):
        prefill_runner("llama").start().next_token()


def test_captured_arrays_do_not_change_when_the_session_goes_on(prefill_runner):
    runner = prefill_runner("mamba2")
    session = runner.prefill(PROMPT)
    captured = runner.capture(session)
    before = {key: array.data.copy() for key, array in captured.arrays.items()}
    runner.step(session, 7)
    assert all((captured.arrays[key].data == data).all() for key, data in before.items())


@pytest.mark.parametrize(("family", "continues"), [("mamba", False), ("jamba", False), ("mamba2", True)])
def test_mamba1_alone_computes_token_by_token_behind_a_state(family, continues, prefill_runner):
    assert prefill_runner(family).continues_in_chunks is continues
