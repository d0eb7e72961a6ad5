"""Two bodies from one: what either server is asked, and who is asked next."""

from __future__ import annotations

from typing import Any

import pytest

from kvweave.errors import ConfigurationError
from kvweave.serving.pairing import PrefillServer, Turns, decode_body, is_one_prompt, prefill_body

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 90, "stream": True,
        "stream_options": {"include_usage": True}, "n": 3, "tools": ["a"], "temperature": 0.2}  # fmt: skip


def test_the_prefill_server_is_asked_for_one_token_of_the_same_prompt() -> None:
    body = prefill_body(CHAT, "id")
    assert (body["messages"], body["tools"], body["max_completion_tokens"], body["stream"]) == (
        CHAT["messages"], ["a"], 1, False,
    )  # fmt: skip
    assert not {"n", "stream_options"} & set(body)
    assert body["kv_transfer_params"]["kvweave"] == {"transfer_id": "id"}
    assert body["kv_transfer_params"]["do_remote_decode"]


def test_without_a_limit_one_is_stated() -> None:
    assert prefill_body({"prompt": "hello", "min_tokens": 4}, "id") == {
        "prompt": "hello", "max_tokens": 1, "stream": False,
        "kv_transfer_params": prefill_body(CHAT, "id")["kv_transfer_params"],
    }  # fmt: skip


def test_the_decode_server_is_asked_everything_and_told_where_the_prompt_is() -> None:
    body = decode_body(CHAT | {"kv_transfer_params": {"do_remote_decode": True}}, "id", "127.0.0.1:9")
    params = body.pop("kv_transfer_params")
    assert body == CHAT
    assert params == {
        "do_remote_decode": False, "do_remote_prefill": True, "kvweave": {"transfer_id": "id", "peer": "127.0.0.1:9"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "one"),
    [
        (CHAT, True), ({"prompt": "text"}, True), ({"prompt": [1, 2]}, True), ({"prompt": ["a", "b"]}, False),
        ({"prompt": [[1], [2]]}, False), ({"prompt": []}, False), ({}, False),
    ],
    ids=["a chat", "a text", "token ids", "texts", "lists of token ids", "an empty list", "nothing"],
)  # fmt: skip
def test_only_one_prompt_can_be_followed(body: dict[str, Any], one: bool) -> None:
    assert is_one_prompt(body) is one


@pytest.mark.parametrize("text", ["http://127.0.0.1:1", "@127.0.0.1:1", "http://127.0.0.1:1@", ""])
def test_a_prefill_server_needs_both_addresses(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write URL@host:port"):
        PrefillServer.parse(text)


def test_a_prefill_server_with_several_ranks_comes_out_as_it_was_written() -> None:
    text = "http://127.0.0.1:1@127.0.0.1:2,127.0.0.1:3"
    assert str(PrefillServer.parse(text)) == text
    assert len(PrefillServer.parse(text).peers) == 2


def test_whoever_has_fewest_open_is_next_and_equals_take_turns() -> None:
    turns = Turns("abc")
    assert [turns.take() for _ in range(4)] == [0, 1, 2, 0]
    turns.leave(2)
    turns.leave(2)
    assert [turns.take() for _ in range(2)] == [2, 2]
