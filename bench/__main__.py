"""``python -m bench``: the whole suite, transfers and planning, with vLLM's own functions where it is installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import page
from bench.clock import Figure
from bench.incumbent_read import vllm_functions
from bench.planning import figures
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.report import Line, all_hold, document
from kvweave.benchmarks.suite import NAMES, run
from kvweave.cli.bench_report import show_lines
from kvweave.cli.output import answers, notices, write_document


def main() -> int:
    options = _options()
    progress = notices()
    effort = Effort.quick() if options.quick else Effort()
    lines = list(run(effort, tuple(options.only or NAMES), vllm_functions(), lambda name: _tell(progress, name)))
    planned = []
    for figure in figures() if not options.only else ():
        _tell(progress, figure.name.strip())
        planned.append(figure)
    for file in (*options.plot, *(page.PICTURES if options.keep else ())):
        from kvweave.cli.bench_chart import draw

        draw(lines, file)
    _answer(options, lines, planned)
    return 0 if all_hold(lines) else 1


def _answer(options: argparse.Namespace, lines: list[Line], planned: list[Figure]) -> None:
    more = {"planning": [figure.document() for figure in planned]}
    made = document(lines, quick=options.quick, more=more)
    if options.keep:
        page.keep(made)
    if options.json:
        write_document(made)
        return
    show_lines(lines)
    table = Table("measured", "", "", "beside", title="Planning: DeepSeek-V3, block 64", box=None)
    for figure in planned:
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, figure.beside)
    answers().print(table)


def _tell(progress: Console, name: str) -> None:
    progress.print(f"[dim]measuring: {name}[/dim]")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", action="append", choices=NAMES, help="one measurement; may be repeated; no planning")
    parser.add_argument("--plot", action="append", type=Path, default=[], help="draw the transfers: PNG or SVG")
    parser.add_argument("--keep", action="store_true", help="make this the run that docs/speed.md and README show")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
