from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.replicas import choose, others, replica_position, salt_number
from kvweave.core.spec import MLAAttentionSpec
from kvweave.core.stripes import Stripe, stripes_of
from kvweave.errors import PlanError
from tests.core.engines import engine, model_of

COUNTS = st.integers(1, 12)


@given(COUNTS, COUNTS, st.integers(0, 10**9))
def test_siblings_are_spread_as_evenly_as_can_be(siblings: int, count: int, salt: int) -> None:
    chosen = Counter(replica_position(ordinal, siblings, count, salt) for ordinal in range(siblings))
    assert len(chosen) == min(siblings, count)
    assert max(chosen.values()) - min(chosen.values()) <= (siblings % count != 0 and siblings > count)


@given(COUNTS, COUNTS, st.integers(0, 100))
def test_counted_requests_rotate_through_all_replicas(ordinal: int, count: int, first: int) -> None:
    siblings = ordinal + 1
    turn = {replica_position(ordinal, siblings, count, salt) for salt in range(first, first + count)}
    assert turn == set(range(count))


@given(st.text(), COUNTS)
def test_text_always_chooses_the_same_replica(salt: str, count: int) -> None:
    assert replica_position(0, 1, count, salt) == replica_position(0, 1, count, salt) == salt_number(salt) % count


@given(st.text(), COUNTS, st.integers(0, 10**17))
def test_names_that_end_in_a_counter_rotate_through_all_replicas(name: str, count: int, first: int) -> None:
    turn = {replica_position(0, 1, count, f"{name}-{number}") for number in range(first, first + count)}
    assert turn == set(range(count))


@pytest.mark.parametrize("digits", [1, 18, 19, 5000])
def test_text_of_any_number_of_digits_is_a_salt(digits: int) -> None:
    assert salt_number("9" * digits) >= 0


@pytest.mark.parametrize("salt", [None, 1.5, b"text", ()], ids=repr)
def test_a_salt_that_is_neither_number_nor_text_is_refused(salt: object) -> None:
    with pytest.raises(PlanError, match=r"salt: .* is neither a whole number nor text"):
        salt_number(salt)


def test_a_read_is_served_by_one_of_its_sources() -> None:
    model = model_of(MLAAttentionSpec(2))
    plan = plan_transfer(engine(model, 4), engine(model, 2))
    (read,) = plan.of(plan.decode.rank(tp=1))
    assert [choose(read, salt).coordinates.tp for salt in range(4)] == [2, 3, 0, 1]


def latents(prefill_tp: int, decode_tp: int) -> TransferPlan:
    model = model_of(MLAAttentionSpec(24))
    return plan_transfer(engine(model, prefill_tp), engine(model, decode_tp))


def test_what_failed_is_served_by_others_and_the_rest_is_left_alone() -> None:
    plan = latents(4, 2)
    reads = plan.of(plan.decode.ranks[0])
    first = {choose(read, 5).coordinates for read in reads}
    again = others(reads, [Stripe(5)], first)
    assert again is not None
    assert [read for part in again.values() for read in part] == list(reads)
    assert all(choose(read, stripe.turn).coordinates not in first for stripe, part in again.items() for read in part)
    assert others(reads, [Stripe(5)], set()) == {}


def test_what_failed_of_a_striped_request_is_served_by_others_in_the_same_stripes() -> None:
    reads = latents(4, 1).of(RankCoordinates())
    failed = {RankCoordinates(tp=0), RankCoordinates(tp=1)}
    assert others(reads, stripes_of(5, 4), failed) == {Stripe(10, 3, 4): reads, Stripe(6, 0, 4): reads}


def test_what_no_other_source_has_is_not_served_again() -> None:
    plan = latents(2, 2)
    reads = plan.of(plan.decode.ranks[0])
    assert others(reads, stripes_of(0, 2), {source.coordinates for read in reads for source in read.sources}) is None
