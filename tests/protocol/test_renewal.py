"""How far granted renewals reach, on the reader's own clock."""

from __future__ import annotations

import pytest

from kvweave.errors import RemoteProtocolError
from kvweave.protocol.renewal import LEAST_INTERVAL_SECONDS, MOST_DRIFT, Renewals
from tests.protocol.examples import TIMING


def test_nothing_is_covered_before_a_grant() -> None:
    assert not Renewals(100.0, 9.0, TIMING).cover(100.0)


def test_grant_reaches_from_the_sending_not_from_the_answer() -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    renewals.grant(1, 10.0)
    assert renewals.cover(109.9)
    assert not renewals.cover(110.0)


def test_grant_reaches_less_far_than_the_fastest_clock_of_the_other_side() -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    renewals.grant(1, 1000.0)
    assert renewals.cover(1097.9)
    assert not renewals.cover(100.0 + 1000.0 / (1 + MOST_DRIFT))


def test_grants_that_overtake_each_other_never_reach_less_far() -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    renewals.send(103.0)
    renewals.grant(2, 10.0)
    renewals.grant(1, 10.0)
    renewals.grant(2, 10.0)
    assert renewals.granted_until == pytest.approx(103.0 + 10.0 * (1 - MOST_DRIFT))


@pytest.mark.parametrize(
    ("granted", "next_moment"), [(3.0, 101.0), (90.0, 103.0), (0.06, 100.05)], ids=["shorter", "longer", "very short"]
)
def test_renewals_come_in_time_for_an_offer_whose_lease_is_shorter_than_its_engines(
    granted: float, next_moment: float
) -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    assert renewals.next_moment == pytest.approx(103.0)
    renewals.grant(1, granted)
    assert renewals.next_moment == pytest.approx(next_moment)


def test_grant_that_was_not_asked_for_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="sequence 2, of which 1"):
        Renewals(100.0, 9.0, TIMING).grant(2, 10.0)


def test_next_renewal_is_due_a_fraction_of_the_lease_after_the_last() -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    assert renewals.next_moment == 103.0
    renewals.send(103.0)
    assert renewals.next_moment == 105.0


def test_waiting_ends_with_the_grant_or_the_answers_bound_whichever_is_later() -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    assert renewals.last_moment == 105.0
    renewals.grant(1, 10.0)
    assert renewals.last_moment == pytest.approx(109.98)
    renewals.send(107.0)
    renewals.send(109.0)
    assert renewals.last_moment == 112.0


def test_waiting_ends_when_the_reads_take_too_long() -> None:
    renewals = Renewals(100.0, 9.0, TIMING)
    renewals.grant(1, 10_000.0)
    assert renewals.last_moment == 220.0


def test_lease_of_no_time_is_not_renewed_all_the_time() -> None:
    assert Renewals(100.0, 1e-300, TIMING).next_moment == 100.0 + LEAST_INTERVAL_SECONDS
