"""The examples run as their users run them, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES_PER_EXAMPLE = 100


def run(name: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_enough_to_read_in_one_go(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < LINES_PER_EXAMPLE


def test_planning_proves_the_pair_and_names_the_sources(tmp_path: Path) -> None:
    shown = run("plan.py", tmp_path)
    assert "proved: 4 ranks" in shown
    assert "request 0: decode tp1 reads" in shown
    assert "num_kv_heads=1," in shown


def test_the_embedding_guide_shows_the_lines_of_the_example() -> None:
    guide = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    shown = [block for block in re.findall(r"^```python\n(.*?)^```$", guide, re.M | re.S) if ">>>" not in block]
    example = (ROOT / "examples" / "embed.py").read_text(encoding="utf-8").splitlines()
    assert len(shown) >= 2
    assert [line for block in shown for line in block.splitlines() if line not in example] == []


@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed; it comes with the extra nixl")
def test_embedding_moves_a_cache_between_two_processes_of_different_shape(tmp_path: Path) -> None:
    shown = run("embed.py", tmp_path)
    assert "decode: tp3 read 38,400 bytes of tp1" in shown
    assert "decode: all 153,600 bytes are right" in shown
    assert "prefill: blocks are free again: acknowledged" in shown
