"""Whether a pair answers as one server does: the same tokens, or a tie that the reference itself nearly tossed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.e2e.vllm.proxy import Answer, complete, through, together

TIE = 1e-3
"""Two log-probabilities so close that a different order of summing may turn them round."""
MOST_TIES = 1 / 200
REFERENCE_SALT = "reference"
"""Keeps the reference's own prefill apart from what a transfer put into the same server's prefix cache."""


@dataclass(frozen=True)
class Difference:
    """One prompt whose tokens differ: from ``place`` on, or because of ``error``. A tie is no fault.

    ``status`` is HTTP's, 0 where nobody answered.
    """

    prompt_tokens: int
    place: int
    wanted: tuple[int, ...]
    got: tuple[int, ...]
    tie: bool = False
    error: str = ""
    status: int = 200


@dataclass(frozen=True)
class Report:
    """What a comparison found."""

    prompts: int
    differences: tuple[Difference, ...]

    @property
    def wrong(self) -> tuple[Difference, ...]:
        """Differences that are no ties."""
        return tuple(difference for difference in self.differences if not difference.tie)

    @property
    def ok(self) -> bool:
        """Nothing is wrong, and ties are rare."""
        return not self.wrong and len(self.differences) <= max(1, int(self.prompts * MOST_TIES))

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.prompts} prompts: equal"
        lines = [f"{self.prompts} prompts: {len(self.wrong)} wrong, {len(self.differences) - len(self.wrong)} ties"]
        for found in self.differences:
            kind = found.error or ("tie" if found.tie else "wrong")
            lines.append(f"  {found.prompt_tokens} tokens, at {found.place}: {found.wanted} / {found.got} ({kind})")
        return "\n".join(lines)


def reference(url: str, prompt: Sequence[int], max_tokens: int) -> Answer:
    """What a server answers that prefilled the prompt itself, with the top two log-probabilities."""
    return complete(url, prompt, max_tokens, logprobs=2, cache_salt=REFERENCE_SALT)


def compare(prompts: Sequence[Sequence[int]], wanted: Sequence[Answer], got: Sequence[Answer]) -> Report:
    """The differences between two runs of the same prompts."""
    found = []
    for prompt, one, other in zip(prompts, wanted, got, strict=True):
        if other.status != 200 or one.status != 200:
            error = f"HTTP {one.status} / {other.status}: {one.error or other.error}"
            status = other.status if one.status == 200 else one.status
            found.append(Difference(len(prompt), 0, one.tokens, other.tokens, error=error[:500], status=status))
        elif one.tokens != other.tokens:
            place = first_difference(one.tokens, other.tokens)
            found.append(Difference(len(prompt), place, one.tokens, other.tokens, is_tie(one, place)))
    return Report(len(prompts), tuple(found))


def check_pair(
    prefill_url: str,
    decode_url: str,
    prompts: Sequence[Sequence[int]],
    max_tokens: int = 10,
    rounds: int = 2,
    at_once: int = 4,
    progress: Callable[[str], None] = print,
) -> list[Report]:
    """Sends the prompts through the pair, several times over, and compares each round with the decode server's own."""
    reports = []
    answers = [
        together([_through(prefill_url, decode_url, prompt, max_tokens) for prompt in prompts], at_once)
        for _ in range(rounds)
    ]
    wanted = together([_reference(decode_url, prompt, max_tokens) for prompt in prompts], at_once)
    for number, got in enumerate(answers):
        reports.append(compare(prompts, wanted, got))
        progress(f"round {number + 1}: {reports[-1]}")
    return reports


def first_difference(wanted: Sequence[int], got: Sequence[int]) -> int:
    """The first place at which two answers differ."""
    pairs = enumerate(zip(wanted, got, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(wanted), len(got)))


def is_tie(answer: Answer, place: int) -> bool:
    """Whether the reference's two best tokens there lie within ``TIE``."""
    logprobs = answer.raw["choices"][0].get("logprobs") or {}
    tops = logprobs.get("top_logprobs") or []
    if place >= len(tops):
        return False
    best = sorted(tops[place].values(), reverse=True)
    return len(best) > 1 and best[0] - best[1] <= TIE


def _through(prefill_url: str, decode_url: str, prompt: Sequence[int], max_tokens: int) -> Callable[[], Answer]:
    return lambda: through(prefill_url, decode_url, prompt, max_tokens)


def _reference(url: str, prompt: Sequence[int], max_tokens: int) -> Callable[[], Answer]:
    return lambda: reference(url, prompt, max_tokens)
