"""Digests of prompts: equal for the same request on both sides, different for everything that changes its cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvweave.integrations.vllm.prompts import is_of, prompt_digest, sign_params

TOKENS = list(range(40))


def request(tokens: Any = TOKENS, lora: str | None = None, media: tuple[tuple[str, int], ...] = ()) -> Any:
    features = [
        SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=4)) for name, offset in media
    ]
    return SimpleNamespace(
        prompt_token_ids=tokens, num_prompt_tokens=40, mm_features=features,
        lora_request=None if lora is None else SimpleNamespace(lora_name=lora),
    )  # fmt: skip


def test_the_cut_prompt_of_the_prefill_side_has_the_same_digest() -> None:
    assert prompt_digest(request(TOKENS[:-1]), 39) == prompt_digest(request(), 39)


@pytest.mark.parametrize(
    "other",
    [
        request([*TOKENS[:20], 99, *TOKENS[21:]]), request(lora="adapter"), request(media=(("picture", 3),)),
        request(TOKENS[::-1]),
    ],
    ids=["token", "adapter", "picture", "order"],
)  # fmt: skip
def test_what_changes_the_cache_changes_the_digest(other: Any) -> None:
    assert prompt_digest(other, 39) != prompt_digest(request(), 39)


def test_what_comes_behind_the_offer_does_not_matter() -> None:
    assert prompt_digest(request([*TOKENS[:39], 99], media=(("picture", 39),)), 39) == prompt_digest(request(), 39)


def signed(one: Any, num_tokens: int = 39) -> dict[str, Any]:
    return sign_params({"remote_port": 1, "kvweave": {"version": 1}}, one, num_tokens)


def test_an_offer_is_of_its_own_prompt_alone() -> None:
    params = signed(request(TOKENS[:-1]))
    assert params["kvweave"]["version"] == params["remote_port"] == 1
    assert is_of(params, request(), 39)
    assert not is_of(params, request(TOKENS[::-1]), 39)


def test_an_offer_never_holds_the_last_token() -> None:
    assert not is_of(signed(request(), 40), request(), 40)


def test_offers_without_a_digest_and_prompts_without_token_ids_are_believed() -> None:
    assert is_of({"kvweave": {}}, request(), 39)
    assert is_of(signed(request()), request(None), 39)
    assert prompt_digest(request(None), 39) is None
