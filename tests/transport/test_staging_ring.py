"""The ring gathers what it may, in turn, keeps to its bounds, and never lets a slot change under its ticket."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.transport.ring_world import gather_message

from kvweave.core.layout import Region
from kvweave.transport.gather_request import MOST_PATTERN_PIECES, GatherRequest, shown
from kvweave.transport.landing import NUM_REFUSED
from kvweave.transport.regions import RegionTable
from kvweave.transport.runs import Runs
from kvweave.transport.slots import Slots
from kvweave.transport.staging_ring import (
    ATTENDED_SECONDS,
    MOST_MESSAGES,
    MOST_QUEUED,
    MOST_READERS,
    MOST_WAITING,
    PROBE_AT,
    RECLAIM_SECONDS,
    SILENT_SECONDS,
    STATUS_BYTES,
    StagingRing,
)

SLOTS, SLOT_BYTES = 4, 1024
TICKETS = {0: 0} | {shown(ticket): ticket for ticket in range(1, 5000)}
"""By what is shown of them."""


@dataclass
class Source:
    memory: np.ndarray = field(default_factory=lambda: np.random.default_rng(0).integers(0, 256, 8192, np.uint8))
    ring: StagingRing = field(default_factory=lambda: StagingRing(b"", SLOTS, SLOT_BYTES))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.regions = RegionTable().with_regions([Region(self.memory.ctypes.data, self.memory.nbytes)])

    def message(self, ticket: int, *offsets: int, given_back: tuple[int, ...] = ()) -> bytes:
        address = np.array(offsets, np.uint64) + np.uint64(self.memory.ctypes.data)
        if not offsets:
            return GatherRequest.for_nothing(given_back).encode()
        return gather_message(ticket, 64, address, given_back=given_back)

    def serve(self, **messages: list[bytes]) -> None:
        """Until nothing is left to do."""
        while self.ring.serve(messages, self.regions, self.now):
            messages = {}

    def ask(self, reader: str, *tickets: int) -> None:
        self.serve(**{reader: [self.message(ticket, 64) for ticket in tickets]})

    @property
    def tickets(self) -> list[int]:
        return [TICKETS[number] for number in self.ring.memory[: 8 * SLOTS].view(np.uint64).tolist()]

    @property
    def refused(self) -> set[int]:
        words = self.ring.memory[8 * SLOTS : 8 * (SLOTS + NUM_REFUSED)].view(np.uint64)
        return {TICKETS[number] for number in words.tolist()} - {0}

    def slot_of(self, ticket: int) -> np.ndarray:
        start = STATUS_BYTES + self.tickets.index(ticket) * SLOT_BYTES
        return self.ring.memory[start : start + SLOT_BYTES]


@pytest.fixture
def source() -> Source:
    return Source()


def test_what_was_asked_for_stands_in_the_slot_of_its_ticket(source: Source) -> None:
    source.serve(reader=[source.message(5, 4096, 0, 640)])
    expected = np.concatenate([source.memory[start : start + 64] for start in (4096, 0, 640)])
    np.testing.assert_array_equal(source.slot_of(5)[:192], expected)


def test_a_slot_that_was_given_back_loses_its_ticket(source: Source) -> None:
    source.ask("reader", 5)
    source.serve(reader=[source.message(0, given_back=(5,))])
    assert source.tickets == [0] * SLOTS


def test_nobody_gives_back_what_another_one_holds(source: Source) -> None:
    source.ask("reader", 5)
    source.serve(other=[source.message(0, given_back=(5,))])
    assert 5 in source.tickets


def test_one_reader_holds_half_of_the_slots_and_its_other_requests_wait(source: Source) -> None:
    source.ask("greedy", 1, 2, 3, 4)
    assert set(source.tickets) == {0, 1, 2}
    source.ask("modest", 9)
    assert 9 in source.tickets
    source.serve(greedy=[source.message(0, given_back=(1,))])
    assert set(source.tickets) == {0, 2, 3, 9}


def test_a_request_that_is_taken_back_while_it_waits_is_never_gathered(source: Source) -> None:
    source.ask("greedy", 1, 2, 3)
    source.serve(greedy=[source.message(0, given_back=(3,)), source.message(0, given_back=(1, 2))])
    source.serve()
    assert source.tickets == [0] * SLOTS


def test_readers_are_served_in_turn(source: Source) -> None:
    source.serve(
        first=[source.message(ticket, 0) for ticket in (1, 2)], second=[source.message(ticket, 0) for ticket in (3, 4)]
    )
    assert sorted(source.tickets) == [1, 2, 3, 4]
    source.ask("third", 5)
    source.serve(first=[source.message(6, 0, given_back=(1,))])
    source.serve(first=[source.message(7, 0, given_back=(2,))])
    assert 5 in source.tickets and not {6, 7} <= set(source.tickets)


def test_requests_of_one_reader_are_served_in_turn(source: Source) -> None:
    """Whoever asks for little does not wait until all of a large one was gathered."""
    source.serve(reader=[message_of_slots(source, 5, 4), source.message(20, 0)])
    assert set(source.tickets) == {0, 5, 20}


def test_a_flood_is_refused_beyond_its_readers_queue_and_others_are_served(source: Source) -> None:
    source.ask("flood", *range(1, 2 + SLOTS // 2 + MOST_WAITING))
    source.ask("flood", *range(100, 100 + MOST_WAITING))
    source.ask("other", 999)
    assert 999 in source.tickets
    assert source.ring.counts["refused"] >= MOST_WAITING - SLOTS // 2
    assert source.refused <= set(range(200))


def test_messages_beyond_a_rounds_are_not_read(source: Source) -> None:
    source.serve(flood=[b"noise"] * (MOST_MESSAGES + 7))
    assert (source.ring.counts["malformed"], source.ring.counts["unread"]) == (MOST_MESSAGES, 7)


def test_only_so_many_addresses_are_kept_of_all_readers(source: Source) -> None:
    runs = Runs(np.array([0], np.uint64), np.array([1], np.uint32), np.array([MOST_PATTERN_PIECES], np.uint32))
    asked = 0
    while not source.ring.counts["refused"]:
        slots = Slots(MOST_PATTERN_PIECES, 1, 1)
        base = np.array([source.memory.ctypes.data], np.uint64)
        ticket, asked = 10**9 * (asked + 1), asked + 1
        source.serve(**{f"reader{asked}": [GatherRequest(ticket, 1, base, runs, 0, slots).encode()]})
    assert asked == 1 + -(-MOST_QUEUED // (MOST_PATTERN_PIECES + 1))


def test_only_so_many_readers_wait(source: Source) -> None:
    source.serve(**{f"reader{number}": [source.message(number + 1, 0)] for number in range(MOST_READERS + 3)})
    assert source.ring.counts["refused"] == 3


def test_a_slot_that_nobody_gave_back_is_taken_when_it_is_needed(source: Source) -> None:
    source.ask("silent", 1, 2)
    source.now += 2 * RECLAIM_SECONDS
    source.serve()
    assert {1, 2} <= set(source.tickets)
    source.ask("reader", 3, 4)
    source.ask("third", 5)
    assert {3, 4, 5} <= set(source.tickets) and len({1, 2} & set(source.tickets)) == 1
    assert source.ring.counts["reclaimed"] == 1


def test_a_slot_that_is_young_is_not_taken(source: Source) -> None:
    source.ask("first", 1, 2)
    source.ask("second", 3, 4)
    source.now += RECLAIM_SECONDS / 2
    source.ask("third", 5)
    assert sorted(source.tickets) == [1, 2, 3, 4]
    source.now += RECLAIM_SECONDS
    source.serve()
    assert 5 in source.tickets


def test_it_is_attended_for_a_moment_after_it_served_somebody(source: Source) -> None:
    assert not source.ring.attended(source.now)
    source.ask("reader", 5)
    assert source.ring.attended(source.now)
    assert not source.ring.attended(source.now + 2 * ATTENDED_SECONDS)


def test_a_ticket_that_is_known_is_refused(source: Source) -> None:
    source.ask("reader", 5, 5)
    source.ask("other", 5)
    assert source.tickets.count(5) == 1
    assert source.ring.counts["refused"] == 2


@pytest.mark.parametrize("offset", [-8192, 8192 - 63, 1 << 40], ids=["before", "over the end", "far away"])
def test_memory_that_is_not_registered_is_refused(source: Source, offset: int) -> None:
    address = np.array([source.memory.ctypes.data + offset], np.uint64)
    source.serve(reader=[gather_message(5, 64, address)])
    assert (source.tickets, source.refused) == ([0] * SLOTS, {5})


def test_more_than_a_slot_is_refused(source: Source) -> None:
    source.serve(reader=[source.message(5, *range(0, 17 * 64, 64))])
    assert source.refused == {5}


def test_readers_that_are_done_are_forgotten(source: Source) -> None:
    for number in range(2 * MOST_READERS):
        source.serve(**{f"reader{number}": [source.message(7, 0)]})
        source.serve(**{f"reader{number}": [source.message(0, given_back=(7,))]})
    assert source.ring.counts["refused"] == 0


def message_of_slots(source: Source, ticket: int, slots: int, offset: int = 0) -> bytes:
    """So many slots of two pieces of 64 bytes, those of slot i from 128 i on."""
    address = np.arange(2 * slots, dtype=np.uint64) * np.uint64(64) + np.uint64(source.memory.ctypes.data + offset)
    return gather_message(ticket, 64, address, slot_pieces=2)


def test_a_silent_reader_with_several_requests_is_served_what_he_forgot_he_holds(source: Source) -> None:
    source.serve(silent=[message_of_slots(source, 5, 4), message_of_slots(source, 50, 4)])
    assert set(source.tickets) == {0, 5, 50}
    source.now += 2 * SILENT_SECONDS
    source.serve()
    assert len(set(source.tickets) - {0}) == 2 and source.ring.counts["reclaimed"] >= 1
    source.now += 2 * SILENT_SECONDS
    source.serve()
    source.now += 2 * SILENT_SECONDS
    source.serve()
    held = source.ring._readers["silent"]
    assert not held.requests and held.held == 2


def test_several_slots_of_one_message_have_tickets_one_after_another(source: Source) -> None:
    source.serve(reader=[message_of_slots(source, 5, SLOTS)])
    for number in range(SLOTS):
        np.testing.assert_array_equal(
            source.slot_of(5 + number)[:128], source.memory[128 * number : 128 * (number + 1)]
        )
        source.serve(reader=[source.message(0, given_back=(5 + number,))])
    assert source.tickets == [0] * SLOTS


def test_a_message_is_refused_from_its_first_bad_slot_on(source: Source) -> None:
    source.serve(reader=[message_of_slots(source, 5, 3, offset=8192 - 5 * 64)])
    assert (set(source.tickets), source.refused) == ({0, 5, 6}, set())
    source.serve(reader=[source.message(0, given_back=(5,))])
    assert (set(source.tickets), source.refused) == ({0, 6}, {7})


def test_one_ticket_that_waits_takes_those_behind_it_back_too(source: Source) -> None:
    source.serve(reader=[message_of_slots(source, 5, 4)])
    source.serve(reader=[source.message(0, given_back=(8,))])
    source.serve(reader=[source.message(0, given_back=(5, 6))])
    assert source.tickets == [0] * SLOTS


def test_a_ticket_that_was_gathered_takes_nothing_else_back(source: Source) -> None:
    source.serve(reader=[message_of_slots(source, 5, 4)])
    source.serve(reader=[source.message(0, given_back=(5,))])
    source.serve(reader=[source.message(0, given_back=(5,))])
    assert set(source.tickets) == {0, 6, 7}


def test_a_request_never_loses_a_slot_to_itself(source: Source) -> None:
    """Its reader may have been stopped, and goes on with what he holds."""
    source.serve(reader=[message_of_slots(source, 5, 4)])
    source.now += 2 * RECLAIM_SECONDS
    source.serve()
    assert set(source.tickets) == {0, 5, 6}
    source.serve(reader=[source.message(0, given_back=(5, 6))])
    assert set(source.tickets) == {0, 7, 8}


def test_one_that_loses_a_slot_to_another_one_is_refused_from_there_on(source: Source) -> None:
    """Where a reader forgot what he holds, his next request gets it."""
    source.serve(reader=[message_of_slots(source, 5, 4)])
    source.now += 2 * RECLAIM_SECONDS
    source.ask("reader", 20)
    assert (set(source.tickets), source.refused) == ({0, 6, 20}, {5})
    source.serve(reader=[source.message(0, given_back=(6, 20))])
    assert source.tickets == [0] * SLOTS


def test_readers_that_ended_keep_nobody_waiting_for_long(source: Source) -> None:
    for number in range(1, 9):
        source.serve(**{f"ended {number}": [message_of_slots(source, 100 * number, 50)]})
    source.ask("living", 1000)
    waited = 0
    while 1000 not in source.tickets:
        source.now += 2 * RECLAIM_SECONDS
        waited += 1
        source.serve()
    assert waited <= 8
    for ticket in range(1001, 1021):
        source.now += 2 * RECLAIM_SECONDS
        source.serve(living=[source.message(ticket, 0, given_back=(ticket - 1,))])
        source.now += 2 * RECLAIM_SECONDS
        source.serve()
        assert ticket in source.tickets
    assert source.ring.counts["gathered"] <= 21 + 8 * SLOTS


def test_one_who_holds_all_he_may_and_says_nothing_is_not_waited_for(source: Source) -> None:
    source.serve(silent=[message_of_slots(source, 5, 4)])
    source.now += 2 * SILENT_SECONDS
    source.serve()
    assert (set(source.tickets), source.refused) == ({0, 5, 6}, {7})
    source.ask("first", 10, 11)
    source.ask("second", 20, 21)
    assert {10, 11, 20, 21} == set(source.tickets)
    source.serve(silent=[source.message(0, given_back=(5, 6))])
    assert {10, 11, 20, 21} == set(source.tickets)


def test_tickets_of_another_message_are_not_given_twice(source: Source) -> None:
    source.ask("reader", 6)
    source.serve(other=[message_of_slots(source, 5, 2)])
    assert set(source.tickets) == {0, 6} and source.ring.counts["refused"] == 1


def test_what_is_shown_of_a_ticket_cannot_be_asked_for(source: Source) -> None:
    """Nor those that follow: whoever could would have another reader take his bytes for its own."""
    source.ask("reader", 5)
    words = source.ring.memory[: 8 * SLOTS].view(np.uint64)
    [seen] = words[words != 0].tolist()
    source.ask("other", seen)
    assert (words == seen).sum() == 1 and {5, 6}.isdisjoint(words.tolist())


def test_no_ticket_waits_twice_and_no_slot_is_lost(source: Source) -> None:
    for ticket in range(1, 20):
        asked = {name: [source.message(ticket, 0)] for name in ("first", "second")}
        source.serve(**asked)
        assert source.tickets.count(ticket) == 1
        source.serve(**{name: [source.message(0, given_back=(ticket,))] for name in asked})
    source.ask("first", 100, 101)
    source.ask("second", 102, 103)
    assert sorted(source.tickets) == [100, 101, 102, 103]


def test_what_may_not_wait_is_refused_before_its_pieces_are_looked_at(source: Source) -> None:
    """A flood costs its reading and no more: these would be refused for their pieces, too."""
    source.ask("reader", *range(1, 1 + MOST_WAITING))
    source.ask("reader", *range(100, 100 + SLOTS // 2))
    looked: list[int] = []

    class Watched(RegionTable):
        def holds(self, *arguments: object) -> bool:
            looked.append(1)
            return super().holds(*arguments)

    source.regions = Watched(source.regions.records)
    nowhere = np.full(1, 2**63, np.uint64)
    source.serve(reader=[gather_message(4000, 8, nowhere)])
    assert not looked and 4000 in source.refused
    source.serve(other=[gather_message(4001, 8, nowhere)])
    assert looked and 4001 in source.refused


def test_a_process_that_was_forked_does_not_close_its_parents_ring() -> None:
    ring = StagingRing(b"0123456789abcdef", SLOTS, SLOT_BYTES)
    child = os.fork()
    if not child:
        ring.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ring.memory[PROBE_AT:STATUS_BYTES].tobytes() == b"0123456789abcdef"
    ring.close()
    assert not ring.memory[PROBE_AT:STATUS_BYTES].any()
