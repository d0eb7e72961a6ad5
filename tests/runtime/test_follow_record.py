"""The report of a followed transfer: bytes of all its fetches, stages of the last one."""

from __future__ import annotations

import kvweave as kw
from kvweave.protocol.reference import OfferReference
from kvweave.runtime.events import ReadsEnded, ReadStatistics
from kvweave.runtime.follow_record import FollowRecord
from kvweave.runtime.handle import Fetch
from kvweave.runtime.tracing import NoSpan
from tests.runtime.memory import ATTENTION

LAYOUT = kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=2), kw.CacheConfig(num_blocks=4))
ADDRESS = "127.0.0.1:5600"
PART = OfferReference("prefill", "127.0.0.1", 5600, "request", 1, 8, {})
RANK = LAYOUT.ranks[1].coordinates


def ended(nbytes: int, at: float) -> ReadsEnded:
    return ReadsEnded(1, 1, at, ReadStatistics({RANK: nbytes}, 2, 0.5, 1.0, {}))


def record() -> FollowRecord:
    """One that was begun at 10 s and whose two parts brought 300 bytes."""
    made = FollowRecord(Fetch(1, "request", print), ADDRESS, LAYOUT, 10.0, NoSpan())
    for nbytes in (100, 200):
        made.turn(11.0, PART, final=False)
        made.add(ended(nbytes, 12.0))
    return made


def test_bytes_are_those_of_all_fetches_and_the_early_ones_are_told_apart() -> None:
    made = record()
    made.turn(20.0, PART, final=True)
    made.add(ended(50, 22.0))
    delivered = made.delivered(23.0)
    assert (delivered.nbytes, delivered.early_bytes, delivered.num_rows) == (350, 300, 6)
    assert delivered.sources == {RANK: {RANK: 350}}


def test_stages_are_those_of_the_final_offer() -> None:
    made = record()
    made.turn(20.0, PART, final=True)
    made.claim(20.0)
    made.posted_at = 20.0
    made.add(ended(50, 22.0))
    seconds = made.delivered(23.0).seconds
    assert (seconds["queued"], seconds["read"], seconds["grant"]) == (10.0, 2.0, 1.0)


def test_each_fetch_has_a_first_claim() -> None:
    made = record()
    assert made.claim(11.0)
    assert not made.claim(12.0)
    made.turn(20.0, PART, final=True)
    assert made.claim(20.0)
    assert made.reference == PART


def test_before_the_first_offer_it_is_known_where_it_is_prefilled() -> None:
    assert FollowRecord(Fetch(1, "request", print), "[::1]:7", LAYOUT, 10.0, NoSpan()).reference.address == "[::1]:7"
