"""Real engines on the CPU: what is read out of their live memory is what transformers caches for the same prompt.

One process per engine, half a minute each: ``KVWEAVE_REAL_ENGINES=1`` runs them. The first layer decides: behind it the
two compute differently enough (bfloat16, norms over groups) that values, not places, drift apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("KVWEAVE_REAL_ENGINES") != "1", reason="KVWEAVE_REAL_ENGINES=1 starts real engines"
)
ROOT = Path(__file__).parents[3]
TOLERANCE = {"float32": 5e-3, "bfloat16": 3e-2}
FAMILIES = {
    "llama": "float32", "gemma3": "float32", "gpt-oss": "float32", "granite-4": "float32", "falcon-h1": "float32",
    "nemotron-h": "float32", "mamba2": "float32", "qwen3-next": "bfloat16", "deepseek-v2": "bfloat16",
}  # fmt: skip


def run(family: str, tp: int = 1) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.integrations.vllm.real_engine", family, str(tp)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    results = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr[-4000:]
    return dict(json.loads(results[0]))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_first_layers_arrays_are_those_of_transformers(family: str) -> None:
    result = run(family)
    assert result["left"] == []
    assert result["arrays"] >= result["layers"]
    assert max(result["first"].values()) < TOLERANCE[FAMILIES[family]], result


@pytest.mark.parametrize("family", ["granite-4", "llama"])
def test_workers_in_processes_of_their_own_are_joined(family: str) -> None:
    result = run(family, tp=2)
    assert result["ranks"] == 2
    assert result["shards"][0] == result["shards"][1] > 0
