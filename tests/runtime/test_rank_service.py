"""A rank's service: readable at once, reading once adopted, ended by either side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kvweave as kw
from kvweave.protocol.effects import DropPeer
from kvweave.runtime.link_messages import Adopt, Attend, End, Ended, decode_event, encode_command
from kvweave.runtime.local_channel import CoordinatorChannel
from kvweave.runtime.polling import Activity
from kvweave.runtime.rank_service import RankService
from kvweave.transport.memory import MemoryNetwork, MemoryTransport
from tests.runtime.memory import ATTENTION, EngineMemory
from tests.runtime.pair import wait_until

MEMORY = EngineMemory(kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(), kw.CacheConfig(num_blocks=4)))


class Served:
    """One service with both roles, and its caller of each."""

    def __init__(self) -> None:
        self.transport: MemoryTransport = MemoryNetwork().join("rank")
        self.service = RankService("rank", MEMORY.layout.ranks[0], self.transport, ["prefill", "decode"])
        self.callers = {role: CoordinatorChannel(end) for role, end in self.service.endpoints.items()}

    def close(self) -> None:
        self.service.close()
        for caller in self.callers.values():
            caller.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def test_its_memory_is_registered_from_the_beginning(served: Served) -> None:
    assert served.service.agent_data == served.transport.agent_data()


def test_it_waits_idle_unless_peers_may_be_reading(served: Served) -> None:
    driven = served.service._thread._pollable
    assert driven.poll() is Activity.IDLE
    served.callers["prefill"].send(encode_command(Attend(busy=True)))
    wait_until(lambda: driven.poll() is Activity.SERVING)
    served.callers["prefill"].send(encode_command(Attend(busy=False)))
    wait_until(lambda: driven.poll() is Activity.IDLE)


def test_an_adopted_rank_takes_commands(served: Served) -> None:
    served.callers["decode"].send(encode_command(Adopt(0, MEMORY.layout)))
    served.callers["decode"].send(encode_command(DropPeer("nobody:1")))
    wait_until(lambda: served.service._thread._pollable._reader is not None)
    assert served.service.alive


def test_a_command_before_it_was_adopted_ends_it(served: Served) -> None:
    served.callers["decode"].send(encode_command(DropPeer("nobody:1")))
    wait_until(lambda: not served.service.alive)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_each_coordinator_hears_of_the_end_that_it_asked_for(served: Served, role: str) -> None:
    served.callers[role].send(encode_command(End()))
    assert served.callers[role].wait(20)
    assert [decode_event(data) for data in served.callers[role].receive()] == [Ended()]


def test_all_coordinators_see_an_end_from_this_side(served: Served) -> None:
    served.service.close()
    for caller in served.callers.values():
        wait_until(lambda caller=caller: list(caller.receive()) == [] and not caller.open)
