"""Bounds of waits must be bounds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kvweave.errors import ConfigurationError
from kvweave.protocol.timing import Timing


@pytest.mark.parametrize("name", [field.name for field in fields(Timing) if field.name.endswith("_seconds")])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_seconds_must_be_a_finite_number_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Timing(**{name: value})


@pytest.mark.parametrize("value", [0, 1, 2, float("nan")])
def test_renew_fraction_must_leave_time_for_the_answer(value: float) -> None:
    with pytest.raises(ConfigurationError, match="renew_fraction"):
        Timing(renew_fraction=value)
