"""Whatever leaves the block, it is closed once, and the error goes on."""

from __future__ import annotations

import pytest

from kvweave.runtime.closing import Closing


class Counted(Closing):
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_leaving_the_block_closes() -> None:
    with Counted() as counted:
        assert counted.closed == 0
    assert counted.closed == 1


def test_an_error_closes_and_goes_on() -> None:
    counted = Counted()
    with pytest.raises(ZeroDivisionError), counted:
        raise ZeroDivisionError
    assert counted.closed == 1
