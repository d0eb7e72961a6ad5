"""What the answers of a pair come to."""

from __future__ import annotations

import pytest

from tests.e2e.vllm.check import Difference, Report
from tests.e2e.vllm.live_bytes import BytesReport
from tests.e2e.vllm.results import EQUAL, FAILED, OURS, WRONG, Row
from tests.e2e.vllm.rounds import judged, with_bytes

WRONG_TOKEN = Difference(33, 2, (1, 2, 3), (1, 2, 4))
TIE = Difference(33, 2, (1, 2, 3), (1, 2, 4), tie=True)
REFUSED = Difference(33, 0, (1, 2, 3), (), error="HTTP 200 / 500: no", status=500)


@pytest.mark.parametrize(
    ("differences", "outcome", "detail"),
    [
        ((), EQUAL, ""),
        ((TIE,), EQUAL, ""),
        ((WRONG_TOKEN, TIE), WRONG, "1 of 40 wrong tokens (HTTP 200)"),
        ((REFUSED,), FAILED, "1 of 40: HTTP 200 / 500: no"),
        ((REFUSED, WRONG_TOKEN), WRONG, "1 of 40 wrong tokens (HTTP 200), 1 failed"),
    ],
    ids=["equal", "a tie", "wrong", "an error", "wrong and an error"],
)
def test_the_outcome_of_two_rounds(differences: tuple[Difference, ...], outcome: str, detail: str) -> None:
    assert judged([Report(20, differences), Report(20, ())], 36, 20) == (outcome, detail)


def test_equal_tokens_without_transfers_prove_nothing() -> None:
    assert judged([Report(20, ())], 9, 20) == (FAILED, "only 9 transfers for 20 prompts")
    assert judged([Report(20, ())], 10, 20)[0] == EQUAL


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (BytesReport(36, 2_000_000, 0), EQUAL), (BytesReport(36, 2_000_000, 4), WRONG),
        (BytesReport(0, 0, 0), FAILED), (BytesReport(36, 9, 0, problems=("no record",)), FAILED),
    ],
    ids=["equal", "wrong", "nothing compared", "records missing"],
)  # fmt: skip
def test_bytes_judge_where_tokens_say_nothing(report: BytesReport, outcome: str) -> None:
    assert with_bytes(Row("qwen3-next", "tp 2>1", OURS, EQUAL), report).outcome == outcome


def test_an_unanswered_pair_has_failed_whatever_its_bytes() -> None:
    row = Row("qwen3-next", "tp 2>1", OURS, FAILED, "20 of 40: HTTP 500")
    assert with_bytes(row, BytesReport(36, 9, 0)) == row
