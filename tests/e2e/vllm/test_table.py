"""The sweep's table, and whether a sweep is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from tests.e2e.vllm.results import ANSWERED, EQUAL, FAILED, INCUMBENT, OURS, REFUSED, WRONG, Row
from tests.e2e.vllm.table import LONGEST, document, markdown, problems, table

EQUAL_ROW = Row("llama", "tp 2>1", OURS, EQUAL, prompts=40, seconds=4.4)
WRONG_ROW = Row("llama", "tp 2>1", INCUMBENT, WRONG, "3 of 20 wrong tokens (HTTP 200)", 20, seconds=2.2)


def test_a_line_has_both_connectors() -> None:
    assert markdown([EQUAL_ROW, WRONG_ROW]) == (
        "| model | pair | kvweave | NixlConnector | seconds |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| llama | tp 2>1 | equal | 3 of 20 wrong tokens (HTTP 200) | 7 |\n"
    )


def test_without_the_incumbent_its_cell_is_empty() -> None:
    assert "| llama | tp 2>1 | equal |  | 4 |" in markdown([EQUAL_ROW])


def test_a_long_reason_is_cut_to_one_line() -> None:
    shown = markdown([replace(WRONG_ROW, outcome=REFUSED, detail="no | way\n" + "x" * 500)])
    cell = shown.splitlines()[2].split(" | ", 3)[3]
    assert cell.startswith(r"refused: no \| way xxx")
    assert "..." in cell and len(cell) < LONGEST + 20


def test_the_terminal_shows_brackets_as_they_are() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table([EQUAL_ROW, replace(WRONG_ROW, outcome=FAILED, detail="[Errno 111] refused")]))
    assert "failed: [Errno 111] refused" in shown.get()


@pytest.mark.parametrize("outcome", [WRONG, REFUSED, FAILED, ANSWERED])
def test_our_row_must_be_equal(outcome: str) -> None:
    assert problems([EQUAL_ROW, WRONG_ROW]) == []
    assert problems([replace(EQUAL_ROW, outcome=outcome, detail="so it is")])[0].startswith("llama, tp 2>1: ")


def test_few_ties_are_believed_over_all_rows() -> None:
    rows = [replace(EQUAL_ROW, pair=str(number), prompts=40, ties=int(number < 2)) for number in range(10)]
    assert problems(rows) == []
    assert problems([*rows, replace(EQUAL_ROW, prompts=0, ties=1)]) == [
        "3 ties in 400 prompts; at most 1 in 200 is believed"
    ]


def test_the_page_says_what_was_run() -> None:
    page = document([EQUAL_ROW, WRONG_ROW])
    assert page.startswith("# ") and "python 3." in page
    assert page.endswith(markdown([EQUAL_ROW, WRONG_ROW]))
