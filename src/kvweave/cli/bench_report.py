"""The result of a benchmark as a table: what was measured, what stands beside it, the ratio and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvweave.cli.output import add_row, answers, new_table

if TYPE_CHECKING:
    from kvweave.benchmarks.report import Line, Value

_VERDICTS = {True: "holds", False: "BROKEN", None: ""}


def show_lines(lines: Sequence[Line]) -> None:
    """The table on stdout, with notes and the verdict below."""
    table = new_table()
    for title, side in (("measured", "left"), ("", "right"), ("beside", "left"), ("ratio", "right")):
        table.add_column(title, justify="right" if side == "right" else "left", overflow="fold")
    for title in ("of", "limit", ""):
        table.add_column(title, overflow="fold")
    for line in lines:
        add_row(table, *cells(line))
    answers().print(table)
    for note in dict.fromkeys(line.note for line in lines if line.note):
        answers().print(f"note: {note}", markup=False)
    answers().print(summary(lines), markup=False)


def cells(line: Line) -> tuple[str, ...]:
    """One line of the table."""
    own, *beside = [f"{_value(value)} {value.name}" for value in line.values] or [""]
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    limit = "" if line.limit is None else str(line.limit)
    return line.title, own, ", ".join(beside), ratio, line.meaning, limit, _VERDICTS[line.holds]


def summary(lines: Sequence[Line]) -> str:
    """How many limits hold, and which do not."""
    judged = [line for line in lines if line.holds is not None]
    broken = [line.key for line in judged if not line.holds]
    text = f"{len(judged) - len(broken)} of {len(judged)} limits hold"
    return f"{text}; broken: {', '.join(broken)}" if broken else text


def _value(value: Value) -> str:
    return f"{value.value:.3g} {value.unit}"
