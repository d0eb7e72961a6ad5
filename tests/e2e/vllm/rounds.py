"""One pair's rounds: what is sent, what is compared with what, and the row that comes of it.

A pair has a cache salt of its own on both sides, so that nothing of another pair is found in a prefix cache. The first
round meets empty caches: every prompt is transferred but for what it shares with one before. The second round sends the
same prompts again: both sides hold whole blocks of them, the rest is transferred to where those end, and what the first
round left in the decode side's prefix cache is used for an answer. The reference is what the decode server answers when
it prefills the prompts itself, under a salt that no transfer has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tests.e2e.vllm.check import Report, compare, reference
from tests.e2e.vllm.contenders import Contender
from tests.e2e.vllm.live_bytes import BytesReport
from tests.e2e.vllm.pairs import Pair
from tests.e2e.vllm.proxy import Answer, metrics, through, together
from tests.e2e.vllm.results import EQUAL, FAILED, WRONG, Row, source_fingerprint, versions
from tests.e2e.vllm.servers import Server

MAX_TOKENS = 10
AT_ONCE = 4
ROUND_SECONDS = 180.0
"""A round that isn't answered by then is over; what is open counts as unanswered."""


def references(server: Server, prompts: Sequence[Sequence[int]]) -> list[Answer]:
    """What the server answers that prefills the prompts itself."""
    return together([partial(reference, server.url, prompt, MAX_TOKENS) for prompt in prompts], AT_ONCE)


def sent(pair: Pair, prefill: Server, decode: Server) -> list[Answer]:
    """The pair's prompts through both servers, concurrently."""
    deadline = time.monotonic() + ROUND_SECONDS

    def ask(prompt: Sequence[int]) -> Answer:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            return Answer(0, error=f"no answer: the round's {ROUND_SECONDS:.0f} s are over")
        return through(prefill.url, decode.url, prompt, MAX_TOKENS, seconds=seconds, cache_salt=pair.name)

    return together([partial(ask, prompt) for prompt in pair.prompts], AT_ONCE)


def measure(
    contender: Contender, pair: Pair, prefill: Server, decode: Server, wanted: Sequence[Answer] | None
) -> tuple[Row, list[Report]]:
    """Runs a pair's rounds. Without wanted answers only their absence is seen."""
    began, before = time.monotonic(), transfers(contender, decode)
    reports = []
    for _ in range(contender.rounds):
        answers = sent(pair, prefill, decode)
        reports.append(compare(pair.prompts, answers if wanted is None else wanted, answers))
    moved = transfers(contender, decode) - before
    row = Row(
        pair.model, pair.name, contender.name, *judged(reports, moved, len(pair.prompts)),
        sum(report.prompts for report in reports),
        sum(len(report.differences) - len(report.wrong) for report in reports),
        moved, round(time.monotonic() - began, 1), source_fingerprint(), versions(),
    )  # fmt: skip
    return row, reports


def judged(reports: Sequence[Report], moved: int, prompts: int) -> tuple[str, str]:
    """The outcome and its detail. A row whose servers moved hardly anything has failed, whatever the tokens."""
    differences = [difference for report in reports for difference in report.wrong]
    compared = sum(report.prompts for report in reports)
    errors = [difference for difference in differences if difference.error]
    if wrong := len(differences) - len(errors):
        return WRONG, f"{wrong} of {compared} wrong tokens (HTTP 200)" + (f", {len(errors)} failed" if errors else "")
    if errors:
        return FAILED, f"{len(errors)} of {compared}: {errors[0].error}"
    if 2 * moved < prompts:
        return FAILED, f"only {moved} transfers for {prompts} prompts"
    return EQUAL, ""


def with_bytes(row: Row, report: BytesReport) -> Row:
    """The row of a pair whose tokens say nothing, by the bytes of the live caches at offer and at delivery."""
    if row.outcome != EQUAL:
        return row
    if report.ok:
        return replace(row, detail=f"{report.compared / 1e6:.1f} MB of live cache in {report.requests} transfers")
    return replace(row, outcome=WRONG if report.wrong else FAILED, detail=f"live cache: {report}")


def transfers(contender: Contender, server: Server) -> int:
    """Transfers that a server has finished since its start."""
    try:
        found = metrics(server.url)
    except OSError:
        return 0
    return int(sum(value for name, value in found.items() if name.split("{", maxsplit=1)[0] == contender.transfers))
