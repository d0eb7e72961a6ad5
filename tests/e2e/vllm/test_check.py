"""The comparison itself: what counts as equal, wrong, or a tie."""

from __future__ import annotations

import pytest

from tests.e2e.vllm.check import compare
from tests.e2e.vllm.proxy import Answer

PROMPT = [[1, 2, 3]]


def answer(tokens: tuple[int, ...], gap: float = 0.5) -> Answer:
    tops = [{"a": -1.0, "b": -1.0 - gap} for _ in tokens]
    return Answer(200, tokens, raw={"choices": [{"logprobs": {"top_logprobs": tops}}]})


def test_equal_tokens() -> None:
    report = compare(PROMPT, [answer((4, 5))], [answer((4, 5))])
    assert report.ok
    assert str(report) == "1 prompts: equal"


@pytest.mark.parametrize("got", [(4, 6), (4,), (4, 5, 6)], ids=["other", "short", "long"])
def test_other_tokens_are_wrong(got: tuple[int, ...]) -> None:
    report = compare(PROMPT, [answer((4, 5))], [answer(got)])
    assert not report.ok
    assert report.wrong[0].got == got


def test_a_tie_of_the_reference_is_told_apart() -> None:
    report = compare(PROMPT, [answer((4, 5), gap=5e-4)], [answer((4, 6))])
    assert report.ok
    assert "tie" in str(report)


def test_many_ties_are_not_believed() -> None:
    report = compare(PROMPT * 2, [answer((4, 5), gap=5e-4)] * 2, [answer((4, 6))] * 2)
    assert not report.ok


def test_a_refusal_is_wrong() -> None:
    report = compare(PROMPT, [answer((4, 5))], [Answer(500, error="no")])
    assert not report.ok
    assert "HTTP 200 / 500: no" in str(report)
