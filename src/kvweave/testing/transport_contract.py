"""The contract suite of transports: what every ``Transport`` must do, run unchanged against all of them.

A test file names how its pair is made and inherits the tests::

    class TestMyTransport(TransportContract):
        @staticmethod
        @contextmanager
        def make_pair() -> Iterator[TransportPair]: ...

The source may live in another process: the suite sees its memory only through ``source_memory``, a view of the same
bytes, and knows its addresses only from ``source_address``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvweave.core.layout import Region
from kvweave.errors import LocalProtocolError, TransportError, TransportErrorKind
from kvweave.transport.base import ReadHandle, ReadRows, ReadState, Transport

MEMORY_BYTES = 24 << 20
GUARD = 0xA5
MOST_POLLS = 3_000_000

ByteArray = npt.NDArray[np.uint8]
OffsetArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TransportPair:
    """A source whose ``MEMORY_BYTES`` registered bytes are random, and a target with as many, not yet connected."""

    target: Transport
    source_memory: ByteArray
    source_address: int
    target_memory: ByteArray
    agent_data: bytes
    progress: Callable[[], None]
    """Lets both sides make progress once."""

    def rows(self, source: npt.ArrayLike, target: npt.ArrayLike, nbytes: npt.ArrayLike) -> ReadRows:
        """Rows between offsets in the two memories."""
        source_offset, target_offset, sizes = (np.asarray(value, np.uint64) for value in (source, target, nbytes))
        return ReadRows(
            source_offset + np.uint64(self.source_address),
            target_offset + np.uint64(self.target_memory.ctypes.data),
            sizes,
        )

    def connect(self) -> str:
        """Connects the target to the source; the source's name."""
        handle = self.target.connect(self.agent_data)
        self.finish(handle)
        assert handle.state is ReadState.DONE, handle
        return handle.peer

    def finish(self, *handles: ReadHandle) -> None:
        """Makes progress until all handles are terminal."""
        for _ in range(MOST_POLLS):
            if all(handle.state.terminal for handle in handles):
                return
            self.progress()
        raise AssertionError(f"not terminal after {MOST_POLLS} polls: {handles}")

    def read(self, peer: str, rows: ReadRows) -> ReadHandle:
        """Reads the rows to the end."""
        handle = self.target.read(peer, rows, attended=True)
        self.finish(handle)
        return handle


def random_source() -> ByteArray:
    """Contents for the source memory of a pair."""
    return np.random.default_rng(1).integers(0, 256, MEMORY_BYTES, np.uint8)


def region_of(memory: ByteArray) -> Region:
    """The region of an array's memory."""
    return Region(memory.ctypes.data, memory.nbytes)


def scattered(count: int, most_bytes: int, seed: int = 0) -> tuple[OffsetArray, OffsetArray, OffsetArray]:
    """Offsets and sizes of ``count`` rows at random places, their targets apart from one another."""
    dice = np.random.default_rng(seed)
    pitch = MEMORY_BYTES // count
    nbytes = dice.integers(1, min(most_bytes, pitch) + 1, count)
    target = dice.permutation(count) * pitch + dice.integers(0, pitch - nbytes + 1)
    source: OffsetArray = dice.integers(0, MEMORY_BYTES - nbytes + 1)
    return source, target, nbytes


def expected_target(
    pair: TransportPair, source: npt.ArrayLike, target: npt.ArrayLike, nbytes: npt.ArrayLike
) -> ByteArray:
    """The target memory after a read into guard bytes, by plain indexing."""
    memory = np.full(MEMORY_BYTES, GUARD, np.uint8)
    for start, into, size in zip(*(np.asarray(value).tolist() for value in (source, target, nbytes)), strict=True):
        memory[into : into + size] = pair.source_memory[start : start + size]
    return memory


class TransportContract:
    """The suite; a subclass gives ``make_pair``."""

    make_pair: Callable[[], AbstractContextManager[TransportPair]]

    @pytest.fixture(scope="class")
    @classmethod
    def shared_pair(cls) -> Iterator[TransportPair]:
        """One pair for the tests that leave it as it was."""
        with cls.make_pair() as pair:
            yield pair

    @pytest.fixture
    def pair(self, shared_pair: TransportPair) -> TransportPair:
        """The shared pair with guard bytes in the target."""
        shared_pair.target_memory[:] = GUARD
        return shared_pair

    @pytest.fixture
    def peer(self, pair: TransportPair) -> str:
        """The connected source's name."""
        return pair.connect()

    @pytest.fixture
    def own_pair(self) -> Iterator[TransportPair]:
        """A pair that the test may ruin."""
        with type(self).make_pair() as pair:
            pair.target_memory[:] = GUARD
            yield pair

    def test_bytes_arrive_and_no_others_change(self, pair: TransportPair, peer: str) -> None:
        """One row."""
        handle = pair.read(peer, pair.rows([5000], [123], [4096]))
        assert (handle.state, handle.error) == (ReadState.DONE, None)
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, [5000], [123], [4096]))

    @pytest.mark.parametrize(
        ("count", "most_bytes"),
        [(1, 1), (300, 70_000), (2_000, 5_000), (2_001, 3_000), (10_000, 2_000)],
        ids=["one byte", "long rows", "as many as one post holds", "one row more than a post holds", "10,000 rows"],
    )
    def test_rows_at_random_places_arrive(self, pair: TransportPair, peer: str, count: int, most_bytes: int) -> None:
        """Every row at its place, all guards whole."""
        places = scattered(count, most_bytes, seed=count)
        assert pair.read(peer, pair.rows(*places)).state is ReadState.DONE
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, *places))

    def test_the_order_of_rows_makes_no_difference(self, pair: TransportPair, peer: str) -> None:
        """Rows in reverse."""
        places = scattered(500, 4_000)
        reverse = [place[::-1].copy() for place in places]
        assert pair.read(peer, pair.rows(*reverse)).state is ReadState.DONE
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, *places))

    def test_one_row_longer_than_a_post_arrives(self, pair: TransportPair, peer: str) -> None:
        """20 MB and a few bytes in one row."""
        place = ([7], [11], [(20 << 20) + 13])
        assert pair.read(peer, pair.rows(*place)).state is ReadState.DONE
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, *place))

    def test_many_rows_of_more_than_a_post_in_all_arrive(self, pair: TransportPair, peer: str) -> None:
        """About 20 MB in 400 rows."""
        places = scattered(400, MEMORY_BYTES)
        assert pair.read(peer, pair.rows(*places)).state is ReadState.DONE
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, *places))

    def test_a_read_of_no_rows_is_done_at_once(self, pair: TransportPair, peer: str) -> None:
        """No progress needed."""
        assert pair.target.read(peer, pair.rows([], [], [])).state is ReadState.DONE

    def test_several_reads_in_flight_do_not_disturb_one_another(self, pair: TransportPair, peer: str) -> None:
        """Seven reads of parts of the same rows."""
        places = scattered(700, 20_000)
        parts = [tuple(place[part::7] for place in places) for part in range(7)]
        handles = [pair.target.read(peer, pair.rows(*part)) for part in parts]
        pair.finish(*handles)
        assert [handle.state for handle in handles] == [ReadState.DONE] * 7
        np.testing.assert_array_equal(pair.target_memory, expected_target(pair, *places))

    def test_progress_counts_the_reads_under_way(self, pair: TransportPair, peer: str) -> None:
        """Down to none."""
        handle = pair.target.read(peer, pair.rows([0], [0], [64]))
        pair.finish(handle)
        assert pair.target.progress() == 0

    def test_addresses_lie_above_two_gigabytes(self, pair: TransportPair) -> None:
        """The other tests would else prove nothing about them."""
        assert min(pair.source_address, pair.target_memory.ctypes.data) > 2**31

    @pytest.mark.parametrize(
        ("source", "target"),
        [(MEMORY_BYTES - 63, 0), (-1, 0), (0, MEMORY_BYTES - 63), (0, -1), (1 << 62, 0)],
        ids=["source end", "source start", "target end", "target start", "source far away"],
    )
    def test_a_row_outside_registered_memory_moves_nothing(
        self, pair: TransportPair, peer: str, source: int, target: int
    ) -> None:
        """Neither that row nor the good one before it."""
        source_address = [pair.source_address, pair.source_address + source]
        target_address = [pair.target_memory.ctypes.data + place for place in (4096, target)]
        rows = ReadRows(
            np.array(source_address, np.uint64), np.array(target_address, np.uint64), np.full(2, 64, np.uint64)
        )
        assert_failed(pair.read(peer, rows), TransportErrorKind.NOT_REGISTERED)
        assert (pair.target_memory == GUARD).all()

    @pytest.mark.parametrize(
        "elsewhere",
        [{"source_memory": "VRAM"}, {"target_memory": "VRAM"}, {"source_device": 1}, {"target_device": 1}],
        ids=["source kind", "target kind", "source device", "target device"],
    )
    def test_memory_of_another_kind_or_device_is_not_registered(
        self, pair: TransportPair, peer: str, elsewhere: dict[str, Any]
    ) -> None:
        """The right addresses do not help."""
        rows = dataclasses.replace(pair.rows([0], [0], [64]), **elsewhere)
        assert_failed(pair.read(peer, rows), TransportErrorKind.NOT_REGISTERED)

    def test_addresses_up_to_the_end_of_64_bits_are_judged_rightly(self, pair: TransportPair, peer: str) -> None:
        """Not registered, as numbers without a sign."""
        high = np.array([2**63 + 4096, 2**64 - 65], np.uint64)
        rows = dataclasses.replace(pair.rows([0, 0], [0, 64], [64, 64]), source_address=high)
        assert_failed(pair.read(peer, rows), TransportErrorKind.NOT_REGISTERED)

    def test_connecting_again_is_harmless(self, pair: TransportPair, peer: str) -> None:
        """The peer keeps its name and reads go on."""
        assert pair.connect() == peer
        assert pair.read(peer, pair.rows([1], [2], [3])).state is ReadState.DONE

    def test_a_read_posted_before_the_connection_is_warm_arrives(self, own_pair: TransportPair) -> None:
        """It waits for the connection."""
        connection = own_pair.target.connect(own_pair.agent_data)
        handle = own_pair.target.read(connection.peer, own_pair.rows([9], [9], [999]))
        own_pair.finish(connection, handle)
        assert (connection.state, handle.state) == (ReadState.DONE, ReadState.DONE)
        np.testing.assert_array_equal(own_pair.target_memory, expected_target(own_pair, [9], [9], [999]))

    @pytest.mark.parametrize("damage", [b"", b"kvweave", b"\0" * 200], ids=["nothing", "a few bytes", "zeros"])
    def test_malformed_agent_data_is_rejected(self, pair: TransportPair, damage: bytes) -> None:
        """By an error of ours."""
        with pytest.raises(TransportError) as caught:
            pair.target.connect(damage)
        assert caught.value.kind is TransportErrorKind.REJECTED

    def test_agent_data_cut_short_is_rejected(self, pair: TransportPair) -> None:
        """Anywhere in our own part of it."""
        for length in range(60):
            with pytest.raises(TransportError):
                pair.target.connect(pair.agent_data[:length])

    def test_a_transport_does_not_connect_to_itself(self, pair: TransportPair) -> None:
        """Its own data is refused."""
        with pytest.raises(TransportError) as caught:
            pair.target.connect(pair.target.agent_data())
        assert caught.value.kind is TransportErrorKind.REJECTED

    def test_overlapping_regions_are_rejected(self, pair: TransportPair) -> None:
        """Also with what is registered already."""
        with pytest.raises(TransportError, match="overlaps"):
            pair.target.register([Region(pair.target_memory.ctypes.data + 4096, 4096)])

    def test_registering_nothing_is_harmless(self, pair: TransportPair) -> None:
        """No regions."""
        pair.target.register([])

    def test_an_unknown_peer_is_lost(self, pair: TransportPair) -> None:
        """A read from it fails, forgetting it changes nothing."""
        assert_failed(pair.target.read("nobody", pair.rows([0], [0], [1])), TransportErrorKind.PEER_LOST)
        pair.target.disconnect("nobody")

    def test_a_disconnected_peer_is_lost_until_connected_again(self, pair: TransportPair, peer: str) -> None:
        """Then it reads as before."""
        pair.target.disconnect(peer)
        assert_failed(pair.target.read(peer, pair.rows([0], [0], [1])), TransportErrorKind.PEER_LOST)
        assert pair.read(pair.connect(), pair.rows([0], [0], [1])).state is ReadState.DONE

    def test_disconnecting_ends_the_reads_under_way(self, pair: TransportPair, peer: str) -> None:
        """All of them, whichever had begun."""
        handles = [pair.target.read(peer, pair.rows(*scattered(12_000, 1_900))) for _ in range(6)]
        pair.progress()
        pair.target.disconnect(peer)
        pair.finish(*handles)
        assert_failed(handles[-1], TransportErrorKind.PEER_LOST)

    def test_a_cancelled_read_ends_and_others_go_on(self, pair: TransportPair, peer: str) -> None:
        """Cancelling twice is harmless."""
        cancelled = pair.target.read(peer, pair.rows(*scattered(12_000, 1_900)))
        other = pair.target.read(peer, pair.rows([3], [3], [3]))
        pair.target.cancel(cancelled)
        pair.target.cancel(cancelled)
        pair.finish(cancelled, other)
        assert_failed(cancelled, TransportErrorKind.CANCELLED)
        assert other.state is ReadState.DONE

    def test_cancelling_a_done_read_changes_nothing(self, pair: TransportPair, peer: str) -> None:
        """It was delivered."""
        handle = pair.read(peer, pair.rows([3], [3], [3]))
        pair.target.cancel(handle)
        assert (handle.state, handle.error) == (ReadState.DONE, None)

    def test_a_terminal_read_writes_no_more(self, pair: TransportPair, peer: str) -> None:
        """Its target may be used again."""
        done = pair.read(peer, pair.rows(*scattered(100, 4_000)))
        cancelled = pair.target.read(peer, pair.rows(*scattered(12_000, 1_900)))
        pair.progress()
        pair.target.cancel(cancelled)
        pair.finish(done, cancelled)
        pair.target_memory[:] = GUARD
        for _ in range(50):
            pair.progress()
        assert (pair.target_memory == GUARD).all()

    def test_closing_ends_everything_and_may_be_repeated(self, own_pair: TransportPair) -> None:
        """Harmless calls stay harmless, others are refused. There are more reads than one call makes progress with."""
        peer = own_pair.connect()
        *_, handle = [own_pair.target.read(peer, own_pair.rows(*scattered(12_000, 1_900))) for _ in range(6)]
        own_pair.progress()
        own_pair.target.close()
        own_pair.target.close()
        assert_failed(handle, TransportErrorKind.UNAVAILABLE)
        own_pair.target.cancel(handle)
        own_pair.target.disconnect(peer)
        assert own_pair.target.progress() == 0
        calls: tuple[Callable[[], object], ...] = (
            own_pair.target.agent_data,
            lambda: own_pair.target.register([]),
            lambda: own_pair.target.connect(own_pair.agent_data),
            lambda: own_pair.target.read(peer, own_pair.rows([], [], [])),
        )
        for call in calls:
            with pytest.raises(LocalProtocolError, match="closed"):
                call()


def assert_failed(handle: ReadHandle, kind: TransportErrorKind) -> None:
    """The read has failed with this kind."""
    assert handle.state is ReadState.FAILED, handle
    assert handle.error is not None
    assert handle.error.kind is kind, handle


_names = itertools.count()


def fresh_name(role: str) -> str:
    """A transport's name that was not used before in this process."""
    return f"{role}-{next(_names)}"
