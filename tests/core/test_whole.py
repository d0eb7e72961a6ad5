from __future__ import annotations

import math

import numpy as np
import pytest

from kvweave.core.whole import LARGEST, require_whole
from kvweave.errors import ConfigurationError, LayoutError


@pytest.mark.parametrize("value", [0, 1, 2**31, LARGEST])
def test_whole_numbers_pass(value: int) -> None:
    require_whole("axis", size=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0, True, None, "4", np.int64(4), -1], ids=repr)
def test_what_is_none_is_refused_with_its_name(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"axis: size is .*; it must be a whole number of at least 0"):
        require_whole("axis", size=value)


def test_what_numpy_could_not_count_is_refused() -> None:
    with pytest.raises(LayoutError, match=f"axis: size is {2**63}; it must be a whole number of at most {LARGEST}"):
        require_whole("axis", error=LayoutError, size=2**63)


def test_the_least_value_may_be_open() -> None:
    require_whole("axis", None, size=-5)
