"""The faults of a soak: as many as asked for, of both sides, the same for the same seed."""

from __future__ import annotations

from collections import Counter

from tests.soak.faults import Wanted, draw


def test_each_side_has_its_kills_and_stops() -> None:
    faults = draw(3, 100, 900, Wanted(kills=20, stops=4), 2.0)
    kills = Counter(fault.engine for fault in faults if fault.stopped_seconds is None)
    assert kills == {"prefill-1": 20, "decode-1": 20}
    stops = Counter(fault.engine for fault in faults if fault.stopped_seconds is not None)
    assert stops == {"prefill-0": 2, "prefill-1": 2, "decode-0": 2, "decode-1": 2}


def test_every_stop_is_longer_than_the_lease() -> None:
    faults = draw(3, 100, 900, Wanted(kills=0, stops=50), 2.0)
    assert min(fault.stopped_seconds or 0.0 for fault in faults) > 2.0


def test_faults_come_in_order_inside_their_part_of_the_run() -> None:
    places = [fault.at_request for fault in draw(3, 100, 900, Wanted(), 2.0)]
    assert places == sorted(places)
    assert places[0] >= 100 and places[-1] < 900


def test_a_seed_draws_the_same_faults_again() -> None:
    assert draw(5, 0, 100, Wanted(), 2.0) == draw(5, 0, 100, Wanted(), 2.0) != draw(6, 0, 100, Wanted(), 2.0)
