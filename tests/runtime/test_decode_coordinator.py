"""The decode coordinator driven by hand: messages in, commands to workers out, reports to the handles."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from kvweave.errors import LocalProtocolError
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, FailureReason, PostReads
from kvweave.protocol.order import Order
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.protocol.states import FetchState
from kvweave.protocol.timing import Timing
from kvweave.runtime.addresses import PeerList
from kvweave.runtime.clock import boot_time
from kvweave.runtime.control import ControlClient, ControlServer
from kvweave.runtime.decode_coordinator import Begin, Connect, DecodeCoordinator
from kvweave.runtime.events import Connected, ReadsEnded, ReadStatistics, WorkerCommand, WorkerEvent
from kvweave.runtime.handle import Fetch
from kvweave.runtime.metrics import Recorder
from kvweave.runtime.polling import Activity
from kvweave.runtime.prefill_coordinator import Offer, PrefillCoordinator
from tests.protocol.examples import TABLES, TARGETS, reference, small_layout
from tests.runtime.pair import wait_until


class Rank:
    """A worker in another process, as the coordinator sees it: commands go out, events come back later."""

    def __init__(self) -> None:
        self.commands: list[WorkerCommand] = []
        self.events: list[WorkerEvent] = []
        self.closed = False

    def submit(self, command: WorkerCommand) -> None:
        self.commands.append(command)

    def poll(self) -> list[WorkerEvent]:
        events, self.events = self.events, []
        return events

    def close(self) -> None:
        self.closed = True


class Joined:
    """One decode rank's coordinator and a prefill coordinator without workers, over a real control channel."""

    def __init__(self) -> None:
        layout = small_layout(1)
        self.rank = Rank()
        self.recorder = Recorder()
        self.server = ControlServer("127.0.0.1:0", PeerList())
        side = PrefillSide("prefill-1", small_layout(2), [b"a", b"b"], 30.0)
        self.prefill_side = side
        self.prefill = PrefillCoordinator(side, self.server, [], boot_time, Recorder())
        self.decode = DecodeCoordinator(
            layout, DecodeSide("decode-1", layout, Timing()), ControlClient(), [self.rank], boot_time, self.recorder
        )
        self.offer = reference(port=self.server.port)
        self.prefill.submit(Offer(self.offer, None, Future()))

    def begin(self) -> Fetch:
        fetch = Fetch(7, "request", lambda number: None)
        self.decode.submit(Begin(fetch, Order(self.offer.address, self.offer, TARGETS)))
        return fetch

    def command(self, kind: type) -> WorkerCommand:
        """The next command of this kind that the rank gets."""

        def found() -> bool:
            self.decode.poll()
            self.prefill.poll()
            return any(isinstance(command, kind) for command in self.rank.commands)

        wait_until(found)
        return next(command for command in self.rank.commands if isinstance(command, kind))

    def read(self) -> Fetch:
        """A fetch whose reads are posted."""
        fetch = self.begin()
        connect = self.command(ConnectPeer)
        self.rank.events.append(Connected(connect.address, connect.attempt, 0))
        post = self.command(PostReads)
        assert (post.source_tables, post.target_tables) == (TABLES, TARGETS)
        return fetch

    @property
    def state(self) -> FetchState | None:
        """Where the fetch stands."""
        return self.decode._side.fetches.state(7)

    def close(self) -> None:
        self.decode.close(None)
        self.prefill.close(None)


@pytest.fixture
def joined() -> Iterator[Joined]:
    made = Joined()
    yield made
    made.close()


def test_delivery_waits_for_the_ranks_report_in_another_process(joined: Joined) -> None:
    fetch = joined.read()
    assert joined.decode.poll() is Activity.READING
    assert not fetch.done()
    joined.rank.events.append(ReadsEnded(7, 0, boot_time(), ReadStatistics()))
    wait_until(lambda: (joined.decode.poll(), joined.prefill.poll(), fetch.done())[2])
    assert fetch.error() is None
    wait_until(lambda: (joined.prefill.poll(), len(joined.prefill_side.offers) == 0)[1])
    assert joined.decode.poll() is Activity.IDLE


def test_closing_cancels_reads_and_frees_their_blocks_when_they_are_over(joined: Joined) -> None:
    fetch = joined.read()
    joined.decode.begin_closing()
    assert CancelReads(7) in joined.rank.commands
    assert fetch.failed.reason is FailureReason.CLOSED
    assert joined.decode.poll() is Activity.READING
    joined.rank.events.append(ReadsEnded(7, 0, boot_time(), ReadStatistics()))
    assert joined.decode.poll() is not Activity.READING
    assert fetch.wait_reusable(0)


def test_end_of_the_engine_ends_commands_that_came_too_late() -> None:
    made = Joined()
    late = made.begin()
    made.decode.close(RuntimeError("unforeseen"))
    assert made.rank.closed
    assert "unforeseen" in str(late.error())
    assert late.wait_reusable(0)
    made.prefill.close(None)


def test_peer_that_breaks_the_protocol_is_dropped_and_counted(joined: Joined) -> None:
    fetch = joined.read()
    wait_until(lambda: (joined.prefill.poll(), joined.decode.poll(), joined.state is FetchState.READING)[2])
    joined.server.send(next(iter(joined.prefill_side.reception._guests)), b"nonsense")
    joined.command(DropPeer)
    assert fetch.failed.reason is FailureReason.PEER_LOST
    assert joined.recorder.snapshot().total("malformed_messages") == 1


def test_connection_asked_for_at_the_end_fails(joined: Joined) -> None:
    future: Future = Future()
    joined.decode.submit(Connect("127.0.0.1:9", future))
    joined.decode.close(None)
    assert isinstance(future.exception(0), LocalProtocolError)
