from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvweave.benchmarks.stopwatch import TimedAgent, replace_agent


class Agent:
    backends = ("UCX",)

    def transfer(self, handle: str) -> str:
        return f"posted {handle}"

    def release_xfer_handle(self, handle: str) -> None:
        raise ValueError(handle)


def test_calls_are_passed_on_and_counted() -> None:
    timed: Any = TimedAgent(Agent())
    assert timed.transfer("a") == "posted a" and timed.backends == ("UCX",)
    assert timed.post_seconds > 0 == timed.other_seconds
    timed.reset()
    assert timed.post_seconds == 0


def test_a_call_that_fails_is_counted_too() -> None:
    timed: Any = TimedAgent(Agent())
    with pytest.raises(ValueError, match="a"):
        timed.release_xfer_handle("a")
    assert timed.other_seconds > 0 == timed.post_seconds


def test_one_call_is_counted_alone_until_all_are() -> None:
    timed: Any = TimedAgent(Agent(), only="transfer")
    for counted in (False, True):
        timed.transfer("a")
        with pytest.raises(ValueError, match="a"):
            timed.release_xfer_handle("a")
        assert timed.post_seconds > 0 and (timed.other_seconds > 0) == counted
        timed.count(None)


def test_the_agent_is_replaced_where_it_is() -> None:
    inner, outer = SimpleNamespace(_agent="nixl"), SimpleNamespace(_agent=SimpleNamespace(_agent="nixl"))
    assert replace_agent(inner, str.upper) == "NIXL" == inner._agent
    assert replace_agent(outer, str.upper) == "NIXL" == outer._agent._agent
