"""``python -m bench [--json]``: prints every figure as it is measured."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from bench.planning import figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What planning costs, beside memcpy and vLLM.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    as_json = parser.parse_args().json
    progress = Console(stderr=True)
    measured = []
    for figure in figures():
        progress.print(f"[dim]measured {figure.name.strip()}[/dim]")
        measured.append(figure)
    if as_json:
        json.dump({"schema": "kvweave.bench/1", "figures": [figure.document() for figure in measured]}, sys.stdout)
        return
    table = Table("measured", "", "", "beside", title="Planning: DeepSeek-V3, block 64")
    for figure in measured:
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, figure.beside)
    Console().print(table)


if __name__ == "__main__":
    main()
