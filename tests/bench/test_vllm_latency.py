"""What is made of the measured times: ratios of medians, the first request's excess, and whether the limits hold."""

from __future__ import annotations

import pytest
from bench.vllm_latency import TENTH, Result, Sample, prompts_of, verdict, verdict_fragmented

from tests.e2e.vllm.results import INCUMBENT, OURS


def samples(first: float, others: float, tokens: tuple[int, ...] = (1, 2)) -> list[Sample]:
    return [Sample(1.0, seconds, tokens) for seconds in (first, *[others] * (TENTH + 5))]


def result(first: float = 3.0, others: float = 2.0, tokens: tuple[int, ...] = (1, 2)) -> Result:
    return Result({OURS: samples(first, others, tokens), INCUMBENT: samples(4.0, 2.0)})


def test_ratios_are_ours_by_the_incumbents() -> None:
    measured = result(first=3.0, others=1.0)
    assert measured.ratio == 0.5
    assert measured.total_ratio == pytest.approx(2 / 3)
    assert measured.excess_ratio == 1.0


def test_answers_that_differ_are_counted() -> None:
    assert result(tokens=(1, 3)).different == TENTH + 6


@pytest.mark.parametrize(
    ("rounds", "ok"),
    [
        ([result()], True),
        ([result(others=2.2)], False),
        ([result(first=3.1)], False),
        ([result(tokens=(9,))], False),
        ([result(others=2.2), result(), result()], True),
    ],
    ids=["within", "slower", "a dear first request", "other tokens", "one slow round of three"],
)
def test_the_medians_of_all_rounds_decide(rounds: list[Result], ok: bool) -> None:
    assert verdict(rounds)["ok"] is ok


def test_no_two_prompts_share_a_beginning() -> None:
    prompts = [prompt for number in range(2) for prompt in prompts_of(30, number)]
    assert len({tuple(prompt[:32]) for prompt in prompts}) == len(prompts)


def fragmented(transfer: float, first_token: float) -> Result:
    ours = Sample(1.0, first_token, (1,), transfer)
    return Result({OURS: [ours] * (TENTH + 1), INCUMBENT: [Sample(1.0, 1.0, (1,), 1.0)] * (TENTH + 1)})


@pytest.mark.parametrize(
    ("transfer", "first_token", "ok"),
    [(0.5, 1.0, True), (0.51, 1.0, False), (0.5, 1.01, False)],
    ids=["within", "slower transfers", "later first tokens"],
)
def test_long_prompts_are_judged_by_their_transfers_too(transfer: float, first_token: float, ok: bool) -> None:
    assert verdict_fragmented([fragmented(transfer, first_token)])["ok"] is ok
