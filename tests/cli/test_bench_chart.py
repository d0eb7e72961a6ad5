from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.cli.bench_chart import draw

LINES = [
    Line(
        "contiguous", "256 MB, in one piece",
        (Value.of("kvweave", "GB/s", [9.5]), Value.of("raw NIXL read", "GB/s", [10.0])),
        "speed by the raw read's", 0.95, Limit(Bound.AT_LEAST, 0.95),
    ),
    Line("tail", "latency", (), "p99 by the median", 3.0, Limit(Bound.AT_MOST, 2)),
]  # fmt: skip


def test_an_svg_has_every_contender_and_limit_as_text(tmp_path: Path) -> None:
    draw(LINES, tmp_path / "speed.svg")
    text = (tmp_path / "speed.svg").read_text(encoding="utf-8")
    for said in ("9.50  kvweave", "10.00  raw NIXL read", "0.95, at least 0.95", "3.00, at most 2"):
        assert said in text


def test_the_same_result_is_the_same_picture(tmp_path: Path) -> None:
    draw(LINES, tmp_path / "one.svg")
    draw(LINES, tmp_path / "other.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_png_is_a_png(tmp_path: Path) -> None:
    draw(LINES, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_lines_without_speed_or_limits_are_still_a_picture(tmp_path: Path) -> None:
    draw([Line("plain", "plain", ())], tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").stat().st_size > 0
