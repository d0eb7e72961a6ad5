"""The demonstration compares, counts and notices: also what was planted to go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.parallel import ParallelConfig
from kvweave.errors import ConfigurationError, LayoutError

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
pytest.importorskip("zmq", reason="the control channel needs the extra nixl")
from kvweave.engines.hf.demo import LONG_TEXT, Contact, Demonstration
from kvweave.engines.hf.engine import EngineShape
from kvweave.engines.hf.process import EngineProcessError

PREFILL = EngineShape(ParallelConfig(tp=4), CacheConfig(16, "HND"))
DECODE = EngineShape(ParallelConfig(tp=2), CacheConfig(64, "NHD"))
RUN = Demonstration("tiny:llama", 9, "text", (1, 2, 3), (1, 2, 3), (), 0, 0, 0.1, {}, 0.1, 0)


@pytest.fixture
def fault(prefill_process):
    """Plants a fault for one test."""
    yield lambda name: setattr(prefill_process, "fault", name)
    prefill_process.fault = ""


@pytest.mark.parametrize(
    ("tokens", "expected", "difference"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((1, 2, 3), (1, 2), 2), ((), (), None)],
    ids=["equal", "another token", "too few", "too many", "none at all"],
)
def test_the_first_difference_is_found(tokens, expected, difference):
    shown = replace(RUN, tokens=tokens, expected=expected)
    assert (shown.difference, shown.ok) == (difference, difference is None)


def test_a_block_that_was_not_freed_is_not_ok():
    assert not replace(RUN, blocks_left=1).ok


def test_a_right_run_says_what_was_moved(stage):
    shown = stage.run("tiny:llama", PREFILL, DECODE, max_new_tokens=8)
    assert shown.ok
    assert shown.tokens == shown.expected
    assert (len(shown.tokens), shown.prompt_tokens) == (8, len(LONG_TEXT))
    assert shown.nbytes == (len(LONG_TEXT) - 1) * 4 * 2 * 4 * 32 * 4
    assert shown.contacts == (Contact("tp0", "full", ("tp0", "tp1")), Contact("tp1", "full", ("tp2", "tp3")))
    assert set(shown.transfer_seconds) == {"peer", "claim", "read", "grant"}


def test_a_wrong_cache_is_noticed(stage, fault):
    fault("other prompt")
    shown = stage.run("tiny:llama", PREFILL, DECODE, max_new_tokens=8)
    assert shown.difference is not None
    assert (shown.ok, shown.blocks_left) == (False, 0)


def test_blocks_that_are_not_freed_are_noticed(stage, fault):
    fault("leak")
    shown = stage.run("tiny:llama", PREFILL, DECODE, max_new_tokens=8)
    assert (shown.ok, shown.difference, shown.blocks_left) == (False, None, 2)


def test_a_prompt_of_one_token_moves_nothing(stage):
    shown = stage.run("tiny:llama", PREFILL, DECODE, "?", max_new_tokens=4)
    assert (shown.ok, shown.prompt_tokens, shown.nbytes, shown.contacts) == (True, 1, 0, ())


def test_a_prompt_without_tokens_is_refused(stage):
    with pytest.raises(ConfigurationError, match="prompt: '' has no tokens"):
        stage.run("tiny:llama", PREFILL, DECODE, "")


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_shape_that_the_model_does_not_allow_names_its_side(stage, side):
    three = EngineShape(ParallelConfig(tp=3), CacheConfig())
    with pytest.raises(LayoutError, match=f"^{side}: k, axis head: 4 units over tp=3"):
        stage.run("tiny:llama", *((three, DECODE) if side == "prefill" else (PREFILL, three)))


def test_a_model_that_one_side_cannot_load_is_not_taken_for_the_one_before(stage, tiny_folder, tmp_path):
    (tmp_path / "config.json").write_bytes((tiny_folder("llama") / "config.json").read_bytes())
    stage.run("tiny:llama", PREFILL, DECODE, max_new_tokens=2)
    with pytest.raises(EngineProcessError, match="cannot load"):
        stage.run(str(tmp_path), PREFILL, DECODE)
    assert stage.run("tiny:llama", PREFILL, DECODE, max_new_tokens=2).ok
