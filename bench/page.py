"""The kept result as the tables of the documents: ``python -m bench.page [FILE]`` prints what docs/speed.md shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "speed.json"
"""The run whose figures the documents show."""
HEAD = ("| measured | median | ratio | limit | |", "| --- | --- | --- | --- | --- |")
_VERDICTS = {True: "holds", False: "**does not hold**", None: ""}


def load(file: Path = RESULT) -> dict[str, Any]:
    """A kept document."""
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def rows(document: Mapping[str, Any]) -> Iterator[str]:
    """One row of docs/speed.md's table for each line."""
    for line in document["lines"]:
        values = ", ".join(f"{value['name']} {shown(value)}" for value in line["values"])
        limit = line["limit"] and f"{line['limit']['bound']} {line['limit']['value']:g}"
        ratio = f"{line['ratio']:.2f} ({line['meaning']})"
        yield f"| {line['title'].strip()} | {values} | {ratio} | {limit or ''} | {_VERDICTS[line['holds']]} |"


def shown(value: Mapping[str, Any]) -> str:
    """A median with its unit, to three digits."""
    return f"{value['median']:.3g} {value['unit']}"


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    print("\n".join([*HEAD, *rows(load(file))]))


if __name__ == "__main__":
    main()
