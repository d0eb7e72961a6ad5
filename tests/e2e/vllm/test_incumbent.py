"""Why the incumbent refused, out of its log."""

from __future__ import annotations

import pytest

from tests.e2e.vllm.incumbent import explained, refusal
from tests.e2e.vllm.results import EQUAL, FAILED, INCUMBENT, REFUSED, WRONG, Row

HANDSHAKE = """\
(Worker pid=7) ERROR 11-29 22:53:10 [base_worker.py:1354] NIXL transfer failure: handshake_failed | Context: {}
(Worker pid=7) ERROR 11-29 22:53:10 [base_worker.py:1354] Traceback (most recent call last):
(Worker pid=7) ERROR 11-29 22:53:10 [base_worker.py:1354]   File "base_worker.py", line 2587, in _validate
(Worker pid=7) ERROR 11-29 22:53:10 [base_worker.py:1354]     assert local_len // ratio == remote_len, (
(Worker pid=7) ERROR 11-29 22:53:10 [base_worker.py:1354] AssertionError
(APIServer pid=8) ERROR 11-29 22:53:11 [serving.py:9] vllm.v1.engine.exceptions.EngineGenerateError: see above
"""


@pytest.mark.parametrize(
    ("raised", "reason"),
    [("", "a bare AssertionError"), (": lengths differ", "lengths differ")],
    ids=["bare", "with a message"],
)
def test_the_exception_of_a_handshake(raised: str, reason: str) -> None:
    assert refusal(HANDSHAKE.replace("AssertionError", f"AssertionError{raised}")) == reason


def test_what_only_follows_is_passed_over() -> None:
    log = (
        "(EngineCore pid=1) ERROR 11-29 22:53:10 [core.py:1] NotImplementedError: no stages here\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert refusal(log) == "no stages here"
    assert refusal("INFO: all is well\n") == ""


def test_only_a_failure_is_explained() -> None:
    row = Row("llama", "tp 2>1", INCUMBENT, FAILED, "20 of 20: HTTP 500")
    assert explained(row, ["", HANDSHAKE]).outcome == REFUSED
    assert explained(row, ["", "nothing"]) == row
    for outcome in (EQUAL, WRONG):
        other = Row("llama", "tp 2>1", INCUMBENT, outcome)
        assert explained(other, [HANDSHAKE]) == other
