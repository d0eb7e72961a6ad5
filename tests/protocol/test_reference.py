"""References as ``kv_transfer_params``: what goes out comes back, and nothing from a client is believed."""

from __future__ import annotations

import json

import pytest

from kvweave.errors import RemoteProtocolError
from kvweave.protocol.messages import Claimed
from kvweave.protocol.reference import OfferReference
from tests.protocol.examples import TABLES, key, reference


def anybody(host: str) -> bool:
    return True


def test_params_survive_json_and_foreign_keys() -> None:
    params = json.loads(json.dumps(reference().params())) | {"do_something_else": [1, 2]}
    assert OfferReference.from_params(params, anybody) == reference()


def test_params_have_the_names_that_proxies_pass_on() -> None:
    names = {
        "do_remote_prefill",
        "remote_engine_id",
        "remote_request_id",
        "remote_block_ids",
        "remote_host",
        "remote_port",
    }
    assert names <= reference().params().keys()


def test_host_that_is_not_allowed_is_refused_with_the_line_to_add() -> None:
    with pytest.raises(RemoteProtocolError, match=r"peers=\['127.0.0.1'\]"):
        OfferReference.from_params(reference().params(), lambda host: False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("remote_engine_id", 7), ("remote_engine_id", ""), ("remote_request_id", None), ("remote_block_ids", [["a"]]),
        ("remote_block_ids", [[-5]]), ("remote_num_tokens", -1), ("remote_num_tokens", 1e3), ("remote_port", 0),
        ("remote_port", "5600"), ("remote_host", ""), ("tp_size", 0), ("kvweave", None), ("kvweave", {"version": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_value_is_refused_with_the_name_of_the_field(field: str, value: object) -> None:
    with pytest.raises(RemoteProtocolError, match=field):
        OfferReference.from_params(reference().params() | {field: value}, anybody)


@pytest.mark.parametrize("params", [None, [], "text", {}], ids=str)
def test_params_that_are_none_are_refused(params: object) -> None:
    with pytest.raises(RemoteProtocolError):
        OfferReference.from_params(params, anybody)


def test_other_version_is_refused_with_both() -> None:
    params = reference().params()
    params["kvweave"] |= {"version": 2}
    with pytest.raises(RemoteProtocolError, match="version is 2, this side reads 1"):
        OfferReference.from_params(params, anybody)


@pytest.mark.parametrize("groups", [[], ["full", "state"], ["full", "full"]], ids=str)
def test_groups_must_match_the_tables(groups: list[str]) -> None:
    params = reference().params()
    params["kvweave"] |= {"groups": groups}
    with pytest.raises(RemoteProtocolError, match="1 tables"):
        OfferReference.from_params(params, anybody)


@pytest.mark.parametrize(
    "claimed",
    [
        Claimed(1, key(), 11, TABLES, 9.0),
        Claimed(1, key(), 10, {"full": (5, 2, 6)}, 9.0),
        Claimed(1, key(generation=2), 10, TABLES, 9.0),
    ],
    ids=["tokens", "blocks", "generation"],
)
def test_difference_from_what_the_prefill_engine_says_is_found(claimed: Claimed) -> None:
    assert reference().difference(Claimed(1, key(), 10, TABLES, 9.0)) is None
    assert reference().difference(claimed) is not None
