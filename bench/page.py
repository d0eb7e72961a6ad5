"""The kept run and what the documents show of it: ``python -m bench --keep`` writes both anew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "speed.json"
"""The run whose figures the documents show."""
PICTURES = (ROOT / "docs" / "images" / "speed.svg", ROOT / "docs" / "images" / "speed.png")
HEAD = ("| measured | median | ratio | limit | |", "| --- | --- | --- | --- | --- |")
_SHARE = "as a share of copying those bytes"
_PLANNING = (
    ("plan one decode rank, tp 16 to 4", "plan, one decode rank, tp 16 -> 4", ""),
    ("plan all ranks, tp 64 to 64", "plan, all ranks, tp 64 -> 64", ""),
    (
        "rows of the request, contiguous blocks", "rows of 128k tokens, contiguous",
        ", 61 rows, one a layer whatever the tokens",
    ),
    (
        "rows of the request, blocks in random order", "rows of 128k tokens, fragmented",
        ", at most 124,928 rows; {} of the time that copying the bytes takes",
    ),
    (
        "vLLM's ids for it (into rows that it prepared for every block at handshake)",
        "vLLM's ids for the same request", "",
    ),
)  # fmt: skip
"""Rows of the README: what they say, the figure of planning, and what stands behind it."""
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


def readme_rows(document: Mapping[str, Any]) -> Iterator[str]:
    """The few rows that the README's figures have of it."""
    planning = {figure["name"].strip(): figure for figure in document["planning"]}
    for title, name, more in _PLANNING:
        yield f"| {title} | {_short(planning[name])}{more and more.format(_short(planning[_SHARE]))} |"
    values = {line["key"]: [shown(value) for value in line["values"]] for line in document["lines"]}
    ours, raw, copy = values["contiguous"]
    yield f"| 269 MB in one piece a layer, from the call to the delivery | {ours}; raw NIXL {raw}, memcpy {copy} |"
    ours, *_, theirs, single = values["fragmented.4k"]
    yield f"| pieces of 4 KB in random order | {ours}; NixlConnector's way {theirs}, without UCX threads {single} |"
    ours, theirs = values["handshake.time"]
    yield f"| handshake with 64 ranks outside NIXL | {ours}; NixlConnector's lists of one of them {theirs} |"


def _short(figure: Mapping[str, Any]) -> str:
    return f"{figure['value']:.2g} {figure['unit']}"


def keep(document: Mapping[str, Any]) -> None:
    """Keeps a run, and writes its rows into docs/speed.md and the README in the place of those that are there."""
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _replace(ROOT / "docs" / "speed.md", re.escape(HEAD[0]) + r"\n(\|.*\n)+", [*HEAD, *rows(document)])
    _replace(ROOT / "README.md", r"\| plan one decode rank.*\n(\|.*\n)+", readme_rows(document))


def _replace(file: Path, pattern: str, lines: Iterable[str]) -> None:
    text, table = file.read_text(encoding="utf-8"), "".join(f"{line}\n" for line in lines)
    made, count = re.subn(pattern, lambda _: table, text)
    if count != 1:
        raise RuntimeError(f"{file.name}: {count} tables of figures, one is expected")
    file.write_text(made, encoding="utf-8")
