"""The README's figures that do not depend on the machine, and those of docs/speed.md that a kept run has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvweave as kw
from bench import page
from kvweave.cli.bench_command import MEASUREMENTS
from kvweave.protocol.description import encode_layout

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SPEED = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "images" / "speed.svg").read_text(encoding="utf-8")
BLOCK_SIZE = 64
TOKENS = 131_072


def engine(tp: int, num_blocks: int = 8_192) -> kw.EngineLayout:
    cache = kw.CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks)
    return kw.EngineLayout.build(kw.models.load("deepseek-v3"), kw.ParallelConfig(tp=tp), cache)


@pytest.fixture(scope="module")
def plan() -> kw.TransferPlan:
    decode = engine(4)
    return kw.plan_transfer(engine(16), decode, target=decode.rank(tp=0))


@pytest.mark.parametrize("tokens", [TOKENS // 8, TOKENS], ids=["16k", "128k"])
def test_contiguous_blocks_cost_one_row_a_layer(plan: kw.TransferPlan, tokens: int) -> None:
    blocks = np.arange(tokens // BLOCK_SIZE)
    found = plan.descriptors(plan.decode.rank(tp=0), blocks, blocks, num_tokens=tokens)
    assert f"{found.num_rows} rows, one a layer" in README


def test_fragmented_blocks_cost_at_most_one_row_a_block_and_layer(plan: kw.TransferPlan) -> None:
    blocks = np.arange(TOKENS // BLOCK_SIZE) * 2
    found = plan.descriptors(plan.decode.rank(tp=0), blocks, blocks[::-1], num_tokens=TOKENS)
    assert f"at most {found.num_rows:,} rows" in README
    assert f"({found.total_bytes / 2**30:.1f} GiB a rank)" in README


@pytest.mark.parametrize("num_blocks", [64, 100_000])
def test_a_handshake_carries_no_blocks(num_blocks: int) -> None:
    assert f"| {len(encode_layout(engine(64, num_blocks))) / 1e6:.1f} MB, whatever" in README


@pytest.mark.parametrize("row", list(page.rows(page.load())))
def test_the_page_of_speeds_shows_the_kept_run(row: str) -> None:
    assert row in SPEED


@pytest.mark.parametrize("row", list(page.readme_rows(page.load())))
def test_figures_of_transfers_are_those_of_the_kept_run(row: str) -> None:
    assert row in README


def test_the_kept_run_is_a_whole_one_and_drawn() -> None:
    kept = page.load()
    assert kept["quick"] is False and {line["key"].split(".")[0] for line in kept["lines"]} == set(MEASUREMENTS)
    for line in kept["lines"]:
        assert line["limit"] is None or f"{line['ratio']:.2f}, {line['limit']['bound']}" in PICTURE
