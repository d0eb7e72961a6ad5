"""Bytes in flight count from the post to the seen end, however a read ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvweave.runtime.in_flight import InFlight
from kvweave.transport.base import ReadHandle, failed_read, peer_lost

READS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**9), st.booleans()))


@given(READS)
def test_open_reads_and_no_others_count(reads: list[tuple[str, int, bool]]) -> None:
    in_flight = InFlight()
    for peer, nbytes, ends in reads:
        handle = ReadHandle(peer)
        in_flight.add(handle, nbytes)
        if ends:
            handle.complete()
    in_flight.settle()
    for peer in "abc":
        assert in_flight.of(peer) == sum(size for name, size, ended in reads if name == peer and not ended)


def test_failed_reads_do_not_count_either() -> None:
    in_flight = InFlight()
    in_flight.add(failed_read("a", peer_lost("a")), 7)
    assert in_flight.of("a") == 7
    in_flight.settle()
    assert in_flight.of("a") == 0
