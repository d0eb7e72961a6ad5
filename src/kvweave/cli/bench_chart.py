"""The result of a benchmark as a picture, PNG or SVG: speeds beside each other, and each ratio against its limit.

The only home of matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from kvweave.benchmarks.report import Bound

if TYPE_CHECKING:
    from kvweave.benchmarks.report import Line

OURS, BESIDE, BROKEN = "#2f6f9f", ("#9aa5b1", "#cbd2d9", "#e4e7eb"), "#b3541e"
SETTINGS = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "kvweave",
    "svg.fonttype": "none",
}  # fmt: skip
_BAR = 0.8


def draw(lines: Sequence[Line], file: Path) -> None:
    """Draws the lines into ``file``, in the form that its name ends in."""
    with rc_context(SETTINGS):
        chart = picture(lines)
        chart.savefig(file, dpi=144, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)


def picture(lines: Sequence[Line]) -> Figure:
    """Two panels: gigabytes per second of every contender, and how every ratio keeps its limit."""
    chart = Figure(figsize=(11, 7), layout="constrained")
    left, right = chart.subplots(1, 2)
    _speeds(left, [line for line in lines if any(value.unit == "GB/s" for value in line.values)])
    _limits(right, [line for line in lines if line.limit is not None and line.ratio is not None])
    return chart


def _speeds(panel: Any, lines: Sequence[Line]) -> None:
    """A group of bars for each line, ours first."""
    place, places, titles = 0.0, [], []
    for line in reversed(lines):
        values = [value for value in line.values if value.unit == "GB/s"]
        for number, value in reversed(list(enumerate(values))):
            colour = OURS if number == 0 else BESIDE[(number - 1) % len(BESIDE)]
            panel.barh(place, value.value, _BAR, color=colour)
            panel.text(value.value, place, f" {value.value:.2f}  {value.name}", va="center", fontsize=8)
            place += 1
        places.append(place - (len(values) + 1) / 2)
        titles.append(line.title.replace(", ", ",\n"))
        place += 0.8
    panel.set_yticks(places, titles)
    panel.set_xlabel("GB/s, median")
    panel.set_title("Speed", loc="left")
    panel.margins(x=0.35)


def _limits(panel: Any, lines: Sequence[Line]) -> None:
    """How much better than its limit each ratio is: right of the line is good."""
    for place, line in enumerate(reversed(lines)):
        quotient = _quotient(line)
        panel.barh(place, quotient - 1, _BAR, left=1, color=OURS if line.holds else BROKEN)
        panel.text(max(quotient, 1), place, f" {line.ratio:.2f}, {line.limit}", va="center", fontsize=8)
    panel.axvline(1, color="#1f2933", linewidth=0.8)
    panel.set_yticks(range(len(lines)), [line.key for line in reversed(lines)])
    panel.set_xscale("log")
    panel.set_xticks([])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("worse than its limit  |  better")
    panel.set_title("Limits", loc="left")
    low, high = panel.get_xlim()
    panel.set_xlim(low, high * (high / low) ** 0.5)


def _quotient(line: Line) -> float:
    """Above 1 where the limit is kept, drawn at most a hundredfold."""
    if line.ratio is None or line.limit is None:
        return 1.0
    ratio = max(line.ratio, 0.01 * line.limit.value)
    better = ratio / line.limit.value if line.limit.bound is Bound.AT_LEAST else line.limit.value / ratio
    return min(max(better, 0.01), 100.0)
