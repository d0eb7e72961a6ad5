"""Staging is chosen by its costs, given up where it comes late, and tried again."""

from __future__ import annotations

from tests.transport.test_rates import RATES, rows

from kvweave.transport.choice import LEAST_NOTED_BYTES, MOST_LATENESS, UNTRIED, Choice
from kvweave.transport.rows import ReadRows

SMALL = rows(4 << 10)
EXPECTED = RATES.staged_seconds(SMALL)


def late(times: float, reads: int) -> Choice:
    choice = Choice(RATES)
    for _ in range(reads):
        choice.staged.note(SMALL, times * EXPECTED)
    return choice


def test_the_cheaper_way_is_chosen() -> None:
    assert Choice(RATES).prefers_staged(SMALL)
    assert not Choice(RATES).prefers_staged(rows(64 << 10))


def test_one_late_read_does_not_decide_and_several_do() -> None:
    lateness = 1.2 * RATES.direct_seconds(SMALL) / EXPECTED
    for reads, staged in ((1, True), (8, False)):
        choice = late(lateness, reads)
        choice.direct.note(SMALL, RATES.direct_seconds(SMALL))
        assert choice.prefers_staged(SMALL) == staged


def test_what_gains_more_than_it_is_late_is_staged_still() -> None:
    lateness = 1.2 * RATES.direct_seconds(SMALL) / EXPECTED
    assert late(lateness, 8).prefers_staged(rows(256))


def test_reads_in_time_bring_it_back() -> None:
    choice = late(MOST_LATENESS, 8)
    for _ in range(8):
        choice.staged.note(SMALL, EXPECTED)
    assert choice.prefers_staged(SMALL)


def test_it_is_tried_again_after_a_while() -> None:
    choice = late(100 * MOST_LATENESS, 20)
    direct = 0
    while not choice.prefers_staged(SMALL):
        choice.took(SMALL, choice.direct)
        direct += 1
    assert 10 < direct < 200


def test_reads_faster_than_expected_earn_some_credit() -> None:
    """What a way costs may have been measured in a bad moment; but one size of pieces says little of others."""
    choice = late(0.01, 20)
    choice.direct.note(SMALL, RATES.direct_seconds(SMALL))
    assert choice.prefers_staged(alike_both_ways())
    assert not choice.prefers_staged(rows(256 << 10))


def test_a_way_that_was_measured_too_dear_is_tried_and_then_taken() -> None:
    """Within a third; what should take longer is not tried, because the try would take longer, too."""
    alike = alike_both_ways()
    for tried, other, prefers in (("staged", "direct", True), ("direct", "staged", False)):
        choice = Choice(RATES)
        used, better = getattr(choice, other), getattr(choice, tried)
        used.note(alike, used.seconds(alike))
        assert choice.prefers_staged(alike) == prefers
        for _ in range(3):
            better.note(alike, 0.6 * better.seconds(alike))
            assert choice.prefers_staged(alike) == prefers
        assert choice.prefers_staged(rows(64)) and not choice.prefers_staged(rows(1 << 20))


def test_a_way_whose_reads_are_never_noted_is_tried_once() -> None:
    """Direct reads beside others are not; the way is not taken for ever because nothing is known of it."""
    dearer = next(some for some in map(rows, range(64 << 10, 256, -256)) if Choice(RATES).prefers_staged(some))
    choice, ways = Choice(RATES), []
    for _ in range(20):
        ways.append(choice.staged if choice.prefers_staged(dearer) else choice.direct)
        if ways[-1] is choice.staged:
            choice.staged.note(dearer, RATES.staged_seconds(dearer))
        choice.took(dearer, ways[-1])
    assert ways == [choice.staged, choice.direct] + [choice.staged] * 18


def test_a_way_that_was_fast_once_is_tried_again() -> None:
    choice = late(0.6, 8)
    choice.direct.note(SMALL, 0.9 * RATES.direct_seconds(SMALL))
    for _ in range(8):
        choice.staged.note(SMALL, RATES.direct_seconds(SMALL))
    direct = 0
    while not choice.prefers_staged(SMALL):
        choice.took(SMALL, choice.direct)
        direct += 1
    assert 0 < direct < 100


def test_small_reads_say_nothing() -> None:
    choice = Choice(RATES)
    for _ in range(20):
        choice.staged.note(rows(4 << 10, LEAST_NOTED_BYTES // 2), 1.0)
    assert choice.prefers_staged(SMALL)


def test_late_direct_reads_count_as_late_ones_staged_do() -> None:
    """Pieces for which direct reading is somewhat cheaper are staged once it was late, and tried directly again."""
    choice, alike = late(1.0, 1), alike_both_ways()
    for _ in range(8):
        choice.direct.note(alike, 2 * RATES.direct_seconds(alike))
    staged = 0
    while choice.prefers_staged(alike):
        choice.took(alike, choice.staged)
        staged += 1
    assert 0 < staged < 400


def test_late_direct_reads_make_nobody_try_the_other_way_where_it_should_take_longer() -> None:
    choice, large = Choice(RATES), rows(256 << 10)
    assert UNTRIED * RATES.staged_seconds(large) > RATES.direct_seconds(large)
    for _ in range(8):
        choice.direct.note(large, 2 * RATES.direct_seconds(large))
    assert not choice.prefers_staged(large)


def alike_both_ways() -> ReadRows:
    """The smallest pieces for which direct reading should be cheaper."""
    return next(some for some in map(rows, range(4 << 10, 64 << 10, 1 << 10)) if not Choice(RATES).prefers_staged(some))


def test_nothing_is_forgotten_by_asking_or_by_taking_the_cheaper_way() -> None:
    choice = late(MOST_LATENESS, 8)
    before = choice.staged.lateness
    for _ in range(50):
        choice.prefers_staged(SMALL)
        choice.took(SMALL, choice.staged)
    assert choice.staged.lateness == before
