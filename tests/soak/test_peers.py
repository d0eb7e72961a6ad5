"""A few of the peers that come and go: nothing of them stays, and nobody waits for one that is silent."""

from __future__ import annotations

from dataclasses import replace

import zmq

from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, joined, wait_until
from tests.soak.footprint import Footprint
from tests.soak.peers import known_peers, request, run, silent_address, visit


def test_peers_that_vanish_leave_no_open_files_and_no_threads() -> None:
    with joined() as pair:
        footprints = list(run(pair, 24, 3))
        wait_until(lambda: Footprint.now().open_files <= footprints[1].open_files)
    assert {footprint.threads for footprint in footprints[1:]} == {footprints[1].threads}


def test_claims_of_a_peer_that_vanished_are_free_again() -> None:
    context = zmq.Context()
    with joined() as pair:
        for number in range(6):
            visit(pair, context, number)
        pair.clock.advance(2 * pair.lease_seconds)
        wait_until(lambda: pair.released.qsize() == 3)
    context.destroy(linger=0)


def test_peer_that_never_answers_delays_no_other() -> None:
    with silent_address() as silent, joined() as pair:
        host, _, port = silent.rpartition(":")
        named = replace(pair.offer("silent"), engine_id="silent", host=host, port=int(port))
        unanswered = pair.decode.fetch(named, TARGET_BLOCKS)
        for number in range(3):
            request(pair, number)
        assert not unanswered.done()
        pair.clock.advance(100)
        assert "is it running" in str(unanswered._report.exception(PATIENCE))
        wait_until(lambda: known_peers(pair) == 1)


def test_footprint_counts_this_process() -> None:
    before = Footprint.now()
    with silent_address():
        assert Footprint.now().open_files == before.open_files + 1
    assert before.resident_bytes > 2**20
