"""The report of a delivery: bytes by source, seconds by stage, incomplete blocks of all ranks."""

from __future__ import annotations

from kvweave.runtime.events import ReadsEnded, ReadStatistics
from kvweave.runtime.handle import Fetch
from kvweave.runtime.record import FetchRecord
from kvweave.runtime.tracing import NoSpan
from tests.protocol.examples import reference, small_layout


def test_report_adds_up_the_ranks() -> None:
    layout = small_layout(2)
    ranks = [rank.coordinates for rank in layout.ranks]
    record = FetchRecord(Fetch(7, "request", lambda number: None), reference(), layout, 95.0, NoSpan())
    record.begin(100.0)
    record.claimed_at, record.posted_at = 101.0, 103.0
    record.add(ReadsEnded(7, 0, 104.0, ReadStatistics({ranks[0]: 10}, 2, 0.5, 1.0, {"window": (3,)})))
    record.add(ReadsEnded(7, 1, 107.0, ReadStatistics({ranks[1]: 20}, 3, 0.7, 4.0, {"window": (1, 3)})))
    delivered = record.delivered(112.0)
    assert (delivered.nbytes, delivered.num_rows) == (30, 5)
    assert delivered.seconds == {"queued": 5.0, "peer": 1.0, "claim": 2.0, "post": 0.7, "read": 4.0, "grant": 5.0}
    assert delivered.sources == {ranks[0]: {ranks[0]: 10}, ranks[1]: {ranks[1]: 20}}
    assert delivered.incomplete == {"window": (1, 3)}


def test_stages_count_from_the_first_claim_and_the_first_retry() -> None:
    layout = small_layout(1)
    record = FetchRecord(Fetch(7, "request", lambda number: None), reference(), layout, 95.0, NoSpan())
    record.begin(100.0)
    assert [record.claim(101.0), record.claim(102.0)] == [True, False]
    record.posted_at = 103.0
    record.retry(105.0)
    record.retry(106.0)
    record.add(ReadsEnded(7, 0, 108.0, ReadStatistics()))
    seconds = record.delivered(110.0).seconds
    assert (seconds["peer"], seconds["claim"], seconds["read"], seconds["retry"]) == (1.0, 2.0, 5.0, 3.0)
