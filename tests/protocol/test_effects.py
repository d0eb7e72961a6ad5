"""Effects are frozen values: what both sides can ask for is listed, and nothing in it changes later."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import get_args

import pytest

from kvweave.protocol import effects
from kvweave.protocol.effects import DecodeEffect, Failed, FailureReason, PrefillEffect
from kvweave.protocol.messages import RefusalReason

KINDS = sorted(set(get_args(DecodeEffect) + get_args(PrefillEffect)), key=lambda kind: kind.__name__)


def test_every_effect_belongs_to_a_side() -> None:
    defined = {
        value for value in vars(effects).values() if is_dataclass(value) and value.__module__ == effects.__name__
    }
    assert defined == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_effect_is_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen


def test_no_reason_of_ours_is_mistaken_for_a_peers() -> None:
    assert {reason.value for reason in FailureReason} & {reason.value for reason in RefusalReason} == set()
    assert Failed(1, FailureReason.LATE, "").reason != RefusalReason.LEASE_ENDED
