"""One request's arrays: rows by entry, and names of what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.errors import LocalProtocolError

ARRAY = CapturedArray(20, np.arange(30).reshape(10, 3))


@pytest.mark.parametrize(("first", "stop"), [(20, 30), (23, 25), (29, 30)], ids=["all", "inside", "the last"])
def test_rows_are_counted_from_the_requests_beginning(first, stop):
    assert (ARRAY.rows(first, stop) == ARRAY.data[first - 20 : stop - 20]).all()


@pytest.mark.parametrize(("first", "stop"), [(5, 5), (40, 30)], ids=["nothing", "less than nothing"])
def test_no_entries_are_always_there(first, stop):
    assert ARRAY.rows(first, stop).shape == (0, 3)


@pytest.mark.parametrize(("first", "stop"), [(19, 25), (25, 31), (0, 5)], ids=["before", "behind", "elsewhere"])
def test_missing_entries_are_named(first, stop):
    with pytest.raises(LocalProtocolError, match=rf"\[{first}, {stop}\) are needed, \[20, 30\) are there"):
        ARRAY.rows(first, stop)


def test_an_array_is_found_by_layer_and_part():
    cache = CapturedCache(30, {("layers.0", "k"): ARRAY})
    assert cache.array("layers.0", "k") is ARRAY
    with pytest.raises(LocalProtocolError, match=r"array layers\.0 v: .* deliver it too"):
        cache.array("layers.0", "v")
