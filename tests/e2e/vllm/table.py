"""The sweep's table: one line a pair, ours beside the incumbent's; and whether the sweep as a whole is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from tests.e2e.vllm.check import MOST_TIES
from tests.e2e.vllm.results import ANSWERED, EQUAL, FAILED, INCUMBENT, OURS, REFUSED, WRONG, Row, versions

COLUMNS = ("model", "pair", OURS, INCUMBENT, "seconds")
LONGEST = 100
"""Characters of a cell; what a log says is cut there."""
_STYLES = {EQUAL: "green", WRONG: "bold red", REFUSED: "yellow", FAILED: "red", ANSWERED: "dim"}

Line = tuple[Row | None, Row | None]


def lines(rows: Sequence[Row]) -> Mapping[tuple[str, str], Line]:
    """Our row and the incumbent's by model and pair, in the order of the rows."""
    by_pair = {(row.model, row.pair): {row.connector: row} for row in rows}
    for row in rows:
        by_pair[row.model, row.pair][row.connector] = row
    return {key: (found.get(OURS), found.get(INCUMBENT)) for key, found in by_pair.items()}


def problems(rows: Sequence[Row]) -> list[str]:
    """What keeps the sweep from being right: our rows that aren't equal, and ties that are too many to be ties."""
    ours = [row for row in rows if row.connector == OURS]
    found = [f"{row.model}, {row.pair}: {row}" for row in ours if row.outcome != EQUAL]
    ties, prompts = sum(row.ties for row in ours), sum(row.prompts for row in ours)
    if ties > max(1, prompts * MOST_TIES):
        found.append(f"{ties} ties in {prompts} prompts; at most 1 in {1 / MOST_TIES:.0f} is believed")
    return found


def table(rows: Sequence[Row]) -> Table:
    """The table for a terminal."""
    shown = Table(*COLUMNS, title="Pairs of vLLM servers, against one server that prefilled itself")
    for (model, pair), line in lines(rows).items():
        cells = [f"[{_STYLES[row.outcome]}]{escaped(row)}[/]" if row else "" for row in line]
        shown.add_row(model, pair, *cells, seconds(line))
    return shown


def markdown(rows: Sequence[Row]) -> str:
    """The same as a Markdown table."""
    cells: list[Sequence[str]] = [COLUMNS, ["---"] * len(COLUMNS)]
    for (model, pair), line in lines(rows).items():
        texts = [text(row).replace("|", r"\|") if row else "" for row in line]
        cells.append([model, pair, *texts, seconds(line)])
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def text(row: Row) -> str:
    """A row in one cell: ``equal``, ``2 of 20 wrong tokens (HTTP 200)``, ``refused: why``, ``failed: why``."""
    line = " ".join(str(row).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def escaped(row: Row) -> str:
    """The cell for rich, which reads square brackets as markup."""
    return text(row).replace("[", r"\[")


def seconds(line: Line) -> str:
    """How long the rounds of a line took, without the start of servers."""
    return f"{sum(row.seconds for row in line if row):.0f}"


def document(rows: Sequence[Row]) -> str:
    """The documentation's page."""
    made_of = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"""# vLLM: every pair of the sweep

Written by `make e2e ARGS=--write-docs` ({made_of}). Each line is a pair of real vLLM servers on a CPU: twenty prompts
of 1 to 1,500 tokens (edges: one of every length at which the window's edge meets a block's, and its neighbours),
concurrently, through {OURS} twice. *equal*: the tokens are those of one server of the decode side's shape that
prefilled itself; or, for models whose tokens change from run to run on a CPU even in one server, the bytes of the live
caches are equal at offer and at delivery. *wrong tokens* came with HTTP 200.

{markdown(rows)}"""
