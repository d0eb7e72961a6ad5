"""Workers: plan once per peer, read what a request needs, tell every end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kvweave as kw
from kvweave.errors import TransportErrorKind
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads
from kvweave.runtime.events import Connected, NotConnected, ReadFailed, ReadsEnded
from kvweave.runtime.workers import DecodeWorker, PrefillWorker
from kvweave.transport.faults import Fault, scripted_faults
from kvweave.transport.memory import MemoryNetwork
from tests.runtime.memory import ATTENTION, LATENT, EngineMemory, contents

SOURCE_BLOCKS = {"full": (9, 3, 12, 0, 7)}
TARGET_BLOCKS = {"full": (1, 5, 0, 2)}
ADDRESS = "127.0.0.1:5600"


class Joined:
    """Four prefill workers and one decode worker, driven by hand."""

    def __init__(self, faults: tuple[Fault, ...] = (), rank: int = 1) -> None:
        self.network = MemoryNetwork()
        small, large = kw.CacheConfig(block_size=8, num_blocks=16), kw.CacheConfig(block_size=12, num_blocks=16)
        self.source = EngineMemory(kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=4), small))
        self.target = EngineMemory(kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=2), large))
        self.source.write(contents(ATTENTION, 1), SOURCE_BLOCKS)
        self.transports = [self.network.join(f"prefill {number}") for number in range(4)]
        layouts = zip(self.source.layout.ranks, self.transports, strict=True)
        self.prefill = [PrefillWorker(layout, transport) for layout, transport in layouts]
        self.now = 100.0
        transport = self.network.join("decode", scripted_faults(faults))
        self.decode = DecodeWorker(rank, self.target.layout, transport, lambda: self.now)

    def connect(self, **changes: object) -> ConnectPeer:
        agents = tuple(worker.agent_data for worker in self.prefill)
        fields = {"address": ADDRESS, "attempt": 3, "layout": self.source.layout, "agents": agents} | changes
        self.decode.submit(ConnectPeer(**fields))

    def post(self, **changes: object) -> None:
        self.decode.submit(self.reads(**changes))

    def reads(self, **changes: object) -> PostReads:
        fields = {
            "fetch": 7, "address": ADDRESS, "source_tables": SOURCE_BLOCKS, "target_tables": TARGET_BLOCKS,
            "start_token": 0, "num_tokens": 40, "salt": 0,
        } | changes  # fmt: skip
        return PostReads(**fields)

    def right(self, blocks: dict[str, tuple[int, ...]] = TARGET_BLOCKS) -> bool:
        whole = contents(ATTENTION, 1)
        pieces = list(self.target._pieces(whole, blocks))[len(whole) :]
        return all(np.array_equal(memory[where], values) for memory, where, values in pieces)

    def rounds(self, count: int = 5) -> list[object]:
        events: list[object] = []
        for _ in range(count):
            for worker in self.prefill:
                worker.poll()
            events += self.decode.poll()
        return events


@pytest.fixture
def joined() -> Joined:
    """Connected and warm."""
    made = Joined()
    made.connect()
    assert made.rounds() == [Connected(ADDRESS, 3, 1)]
    return made


def test_request_is_read_from_the_planned_sources(joined: Joined) -> None:
    joined.post()
    (ended,) = joined.rounds()
    assert isinstance(ended, ReadsEnded)
    assert (ended.fetch, ended.rank, ended.completed_at) == (7, 1, 100.0)
    assert {str(source): nbytes for source, nbytes in ended.statistics.bytes_from.items()} == {"tp2": 2560, "tp3": 2560}
    assert joined.right()


def test_reads_that_last_report_when_they_were_seen_to_end() -> None:
    made = Joined((Fault(delay=3), Fault(delay=6)))
    made.connect()
    made.rounds()
    made.post()
    assert made.rounds(4) == []
    made.now = 105.0
    (ended,) = made.rounds()
    assert (ended.completed_at, ended.statistics.read_seconds) == (105.0, 5.0)


def test_nothing_to_read_ends_at_once(joined: Joined) -> None:
    joined.post(start_token=40)
    (ended,) = joined.rounds(1)
    assert ended.statistics.bytes_from == {}


def test_first_failed_read_is_told_and_the_end_follows_when_the_others_are_over() -> None:
    made = Joined((Fault(error=TransportErrorKind.UNAVAILABLE), Fault(delay=3, error=TransportErrorKind.REJECTED)))
    made.connect()
    made.rounds()
    made.post()
    events = made.rounds(8)
    assert [type(event) for event in events] == [ReadFailed, ReadsEnded]
    assert (events[0].reason, events[0].error.kind) == (FailureReason.READ_FAILED, TransportErrorKind.UNAVAILABLE)


def test_cancelled_reads_end() -> None:
    made = Joined((Fault(dropped=True),) * 2)
    made.connect()
    made.rounds()
    made.post()
    assert made.rounds() == []
    made.decode.submit(CancelReads(7))
    made.decode.submit(CancelReads(99))
    assert isinstance(made.rounds()[-1], ReadsEnded)


def test_dead_source_is_a_lost_peer(joined: Joined) -> None:
    joined.network.kill(joined.transports[3])
    joined.post()
    events = joined.rounds()
    assert [event.reason for event in events if isinstance(event, ReadFailed)] == [FailureReason.PEER_LOST]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target_tables": {"full": (1,)}}, FailureReason.BLOCK_TABLES),
        ({"source_tables": {"full": (9, 3, 12, 0, 99)}}, FailureReason.BLOCK_TABLES),
        ({"source_tables": {"other": (9,)}}, FailureReason.BLOCK_TABLES),
        ({"address": "10.0.0.1:1"}, FailureReason.PEER_LOST),
    ],
    ids=["too few blocks", "blocks out of range", "unknown group", "unknown peer"],
)
def test_request_that_cannot_be_posted_fails_and_ends(
    joined: Joined, changes: dict[str, object], reason: FailureReason
) -> None:
    joined.post(**changes)
    failed, ended = joined.rounds()
    assert (failed.reason, type(ended)) == (reason, ReadsEnded)


def test_dropped_peer_must_be_connected_again(joined: Joined) -> None:
    joined.decode.submit(DropPeer(ADDRESS))
    joined.decode.submit(DropPeer(ADDRESS))
    joined.connect(attempt=4)
    assert joined.rounds() == [Connected(ADDRESS, 4, 1)]


def lie_about_an_agent(made: Joined) -> dict[str, object]:
    return {"agents": (made.prefill[0].agent_data,) * 3 + (b"nonsense",)}


def kill_a_source(made: Joined) -> dict[str, object]:
    made.network.kill(made.transports[2])
    return {}


def give_another_model(made: Joined) -> dict[str, object]:
    return {"layout": kw.EngineLayout.build(LATENT, kw.ParallelConfig(tp=4))}


@pytest.mark.parametrize(
    ("prepare", "has_problems"),
    [(lie_about_an_agent, False), (kill_a_source, False), (give_another_model, True)],
    ids=["malformed agent data", "dead source", "another model"],
)
def test_peer_that_cannot_be_connected_is_told_once(
    prepare: Callable[[Joined], dict[str, object]], has_problems: bool
) -> None:
    made = Joined()
    made.connect(**prepare(made))
    (event,) = made.rounds()
    assert isinstance(event, NotConnected)
    assert (event.attempt, event.rank, bool(event.problems)) == (3, 1, has_problems)


def test_closing_ends_the_transport(joined: Joined) -> None:
    joined.decode.close()
    for worker in joined.prefill:
        worker.close()
    assert joined.network._transports == {}


def test_fenced_reads_begin_when_their_memory_is_ready(joined: Joined) -> None:
    joined.post(fence=7)
    assert joined.rounds() == []
    assert not joined.decode.busy
    joined.decode.allow(7)
    assert [type(event) for event in joined.rounds()] == [ReadsEnded]


def test_memory_that_is_ready_first_holds_nothing_up(joined: Joined) -> None:
    joined.decode.allow(7)
    joined.post(fence=7)
    assert [type(event) for event in joined.rounds()] == [ReadsEnded]


def test_fenced_reads_that_are_cancelled_end_without_a_byte(joined: Joined) -> None:
    joined.post(fence=7)
    joined.decode.submit(CancelReads(7))
    (ended,) = joined.rounds()
    assert ended.statistics.bytes_from == {}
    joined.decode.allow(7)
    assert joined.rounds() == []


def test_what_was_ready_for_a_peer_is_ready_for_its_successor(joined: Joined) -> None:
    """The claim is tried once more when the first peer was replaced before it answered."""
    joined.decode.allow(7)
    for _ in range(2):
        joined.post(fence=7)
        assert [type(event) for event in joined.rounds()] == [ReadsEnded]
    assert joined.right()
