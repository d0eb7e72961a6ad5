"""All pairs against real vLLM servers, ours beside NixlConnector's: ``make e2e``, ``python -m tests.e2e.vllm.sweep``.

Model by model, ours first. A row is kept as soon as it is found, so that a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

from rich.console import Console

from kvweave.engines.hf.model_source import cache_folder
from tests.e2e.vllm.contenders import KVWEAVE, NIXL, Contender
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.pairs import CORE, PAIRS, Pair, chosen
from tests.e2e.vllm.results import Results, Row, versions
from tests.e2e.vllm.servers import Progress
from tests.e2e.vllm.table import document, problems, table
from tests.e2e.vllm.turn import Turn

DOCUMENT = Path(__file__).parents[3] / "docs" / "vllm-sweep.md"


@dataclass
class Sweep:
    """Where rows and tiny models are kept, and who hears of progress."""

    results: Results
    models: Path
    progress: Progress
    again: bool = False
    """Run also what still holds."""
    began: float = field(default_factory=time.monotonic)

    def run(self, pairs: Sequence[Pair], contenders: Sequence[Contender]) -> list[Row]:
        """The rows of all pairs, in order; those that still hold are not run again."""
        rows: dict[tuple[str, str, str], Row] = {}
        for model, of_model in groupby(pairs, lambda pair: pair.model):
            mine = list(of_model)
            for contender in contenders:
                for row in self._turn(model, mine, contender):
                    rows[model, row.pair, contender.name] = row
        return [rows[pair.model, pair.name, contender.name] for pair in pairs for contender in contenders]

    def _turn(self, model: str, pairs: Sequence[Pair], contender: Contender) -> list[Row]:
        found = {pair: None if self.again else self.results.load(pair, contender.name) for pair in pairs}
        rows = [row for row in found.values() if row is not None]
        missing = [pair for pair, row in found.items() if row is None]
        if missing:
            served = served_model(model, self.models)
            for row in Turn(model, contender, served, self.results.folder / model, self._tell).run(missing):
                self.results.save(row)
                rows.append(row)
        return rows

    def _tell(self, line: str) -> None:
        seconds = int(time.monotonic() - self.began)
        self.progress(f"[{seconds // 60:2d}:{seconds % 60:02d}] {line}")


def main() -> int:
    """Exit code 0 where all of ours are equal, 1 where not, 130 where the sweep was stopped."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder: Path = options.folder or cache_folder() / "e2e"
    stated = os.environ.get("KVWEAVE_E2E_MODELS")
    progress = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    models = Path(stated) if stated else folder / "models"
    sweep = Sweep(Results(folder, options.keep_stale), models, progress.print, options.again)
    pairs = chosen(CORE if options.core else PAIRS, options.only, options.rows)
    try:
        rows = sweep.run(pairs, [KVWEAVE] if options.core or options.no_incumbent else [KVWEAVE, NIXL])
    except KeyboardInterrupt:
        progress.print(f"stopped; the same command goes on where it was ({folder})")
        return 130
    return _report(rows, options)


def _report(rows: Sequence[Row], options: argparse.Namespace) -> int:
    found = problems(rows)
    if options.json:
        print(json.dumps({"schema": "kvweave.e2e/1", "versions": versions(), "problems": found,
                          "rows": [asdict(row) for row in rows]}))  # fmt: skip
    else:
        Console().print(table(rows))
        for problem in found:
            print(problem)
    if options.write_docs:
        DOCUMENT.write_text(document(rows))
    return 1 if found else 0


def _options() -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        return [part.strip() for part in text.split(",") if part.strip()]

    parser = argparse.ArgumentParser(prog="python -m tests.e2e.vllm.sweep", description=__doc__)
    parser.add_argument("--only", type=listed, default=[], metavar="MODELS", help="such as llama,gemma3")
    parser.add_argument("--rows", type=listed, default=[], metavar="PAIRS", help="parts of names: 'tp 2>1,block'")
    parser.add_argument("--core", action="store_true", help="one pair of each kind, ours only: what CI runs")
    parser.add_argument("--no-incumbent", action="store_true", help="ours only")
    parser.add_argument("--again", action="store_true", help="run also the rows that are kept and still hold")
    parser.add_argument("--keep-stale", action="store_true", help="keep rows of other sources and versions")
    parser.add_argument("--folder", type=Path, help="where rows and logs are kept (e2e in kvweave's cache folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write-docs", action="store_true", help=f"also write docs/{DOCUMENT.name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
