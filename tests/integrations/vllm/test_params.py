"""What a request asks for, whatever a client put there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvweave.integrations.vllm.params import (
    asks_for_offer,
    is_offered,
    mark_taken,
    names_offer,
    nothing_offered,
)


def request(params: Any, resumable: bool = False) -> Any:
    return SimpleNamespace(kv_transfer_params=params, resumable=resumable)


@pytest.mark.parametrize("params", [None, {}, "text", [1], {"do_remote_decode": None, "do_remote_prefill": 0}], ids=str)
def test_nothing_is_asked_for(params: Any) -> None:
    assert not asks_for_offer(request(params))
    assert not names_offer(request(params))


def test_the_two_sides() -> None:
    assert asks_for_offer(request({"do_remote_decode": True, "do_remote_prefill": False}))
    assert names_offer(request({"do_remote_decode": False, "do_remote_prefill": True}))


def test_a_session_whose_prompt_grows_asks_for_nothing() -> None:
    assert not asks_for_offer(request({"do_remote_decode": True}, resumable=True))
    assert not names_offer(request({"do_remote_prefill": True}, resumable=True))


def test_a_taken_offer_is_not_named_again() -> None:
    taken = request({"do_remote_prefill": True, "remote_port": 1})
    mark_taken(taken)
    assert taken.kv_transfer_params == {"do_remote_prefill": False, "remote_port": 1}
    nothing = request(None)
    mark_taken(nothing)
    assert nothing.kv_transfer_params is None


def test_an_answer_that_offers_nothing_asks_for_nothing() -> None:
    assert not is_offered(nothing_offered())
    assert not is_offered(None)
    assert not names_offer(request(nothing_offered()))
    assert is_offered({"do_remote_prefill": True})
