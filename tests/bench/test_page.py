from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.page import HEAD, rows

from bench import page

LINE: dict[str, Any] = {
    "key": "loop", "title": "  their latency", "meaning": "p99 by the median", "ratio": 1.456, "holds": True,
    "values": [{"name": "median", "unit": "ms", "median": 12.345}], "limit": {"bound": "at most", "value": 2.0},
}  # fmt: skip


def test_a_row_has_values_ratio_limit_and_verdict() -> None:
    (row,) = rows({"lines": [LINE]})
    assert row == "| their latency | median 12.3 ms | 1.46 (p99 by the median) | at most 2 | holds |"
    assert row.count("|") == HEAD[0].count("|")


def test_a_broken_limit_is_said_and_no_limit_is_nothing() -> None:
    broken, free = rows({"lines": [LINE | {"holds": False}, LINE | {"holds": None, "limit": None}]})
    assert broken.endswith("| at most 2 | **does not hold** |") and free.endswith("|  |  |")


def test_keeping_a_run_changes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = page.load()
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/speed.md"):
        (tmp_path / name).write_text((page.ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    before = [(tmp_path / name).read_text(encoding="utf-8") for name in ("README.md", "docs/speed.md")]
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(page, "RESULT", tmp_path / "speed.json")
    page.keep(kept)
    assert page.load(tmp_path / "speed.json") == kept
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in ("README.md", "docs/speed.md")] == before
