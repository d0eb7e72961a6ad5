"""Messages are values: equal when their fields are, told apart by their tag, never changed."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from kvweave.protocol.messages import AnyMessage, Message, OfferKey
from tests.protocol.examples import key

KINDS = get_args(AnyMessage)


def test_every_message_is_in_the_union_under_a_tag_of_its_own() -> None:
    assert set(KINDS) == set(Message.__subclasses__())
    assert len({kind.__struct_config__.tag for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_message_takes_no_unknown_fields_and_does_not_change(kind: type) -> None:
    assert kind.__struct_config__.forbid_unknown_fields
    assert kind.__struct_config__.frozen


def test_offer_keys_of_two_generations_differ() -> None:
    assert key(generation=1) != key(generation=2)
    assert {key(): "first"}[msgspec.convert(["request", 1], OfferKey)] == "first"
