"""Stripes: parts that are a whole, of sizes that differ by a block at most, from the sources of several turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Interval
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.replicas import salt_number
from kvweave.core.spec import MLAAttentionSpec, SlidingWindowSpec
from kvweave.core.stripes import Stripe, checked_stripes, stripe_edges, stripes_of
from kvweave.errors import PlanError
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

RANK = RankCoordinates()


@given(st.integers(0, 200), st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
@example(3, 0, 16, 4)
@example(15, 2, 16, 2)
def test_edges_cut_between_blocks_into_parts_of_almost_equal_size(
    start: int, length: int, block: int, count: int
) -> None:
    edges = stripe_edges(Interval(start, start + length), block, count)
    sizes = np.diff(edges)
    assert (edges[0], edges[-1], len(sizes)) == (start, start + length, count)
    assert (sizes >= 0).all() and sizes.max() - sizes.min() <= block
    assert all(edge % block == 0 or edge in (start, start + length) for edge in edges.tolist())


def test_a_request_is_served_by_turns_from_its_salt_on() -> None:
    first = salt_number("request-7")
    assert list(stripes_of("request-7", 2)) == [Stripe(first, 0, 2), Stripe(first + 1, 1, 2)]


@pytest.mark.parametrize(("turn", "number", "count"), [(-1, 0, 1), (0, 2, 2), (0, -1, 2), (0, 0, 0)])
def test_a_part_beside_its_request_is_refused(turn: int, number: int, count: int) -> None:
    with pytest.raises(PlanError, match=f"part {number} of {count} at turn {turn}; count both from 0"):
        Stripe(turn, number, count)


@pytest.mark.parametrize("stripes", [0, -1, 1.5, True, "two"], ids=repr)
def test_numbers_that_cut_nothing_are_refused(stripes: object) -> None:
    with pytest.raises(PlanError, match=r"descriptors: stripes is|stripes:"):
        checked_stripes(0, stripes, 4)


@pytest.mark.parametrize(
    "parts", [[Stripe(0, 0, 2), Stripe(1, 0, 2)], [Stripe(0, 0, 2), Stripe(1, 1, 3)]], ids=["twice", "of two requests"]
)
def test_parts_that_do_not_belong_together_are_refused(parts: list[Stripe]) -> None:
    with pytest.raises(PlanError, match="name each part once"):
        checked_stripes(0, parts, 4)


def latents(tokens: int = 16 * 40, block: int = 16, **decode: object) -> TransferPlan:
    """Four ranks with the same latents of 24 bytes a token and layer, and one target."""
    model = model_of(*[MLAAttentionSpec(12)] * 2)
    cache = [CacheConfig(size, num_blocks=tokens // size + 1) for size in (16, block)]
    return plan_transfer(engine(model, 4, cache[0]), engine(model, 1, cache[1], **decode))


def test_a_large_request_of_latents_is_served_by_all_replicas_equally() -> None:
    plan = latents()
    blocks = np.random.default_rng(1).permutation(40)
    for tokens in (640, 637, 600, 333):
        rows = plan.descriptors(RANK, blocks, blocks[::-1], tokens, start_token=21, stripes=4)
        sizes = [part.total_bytes for part in rows.values()]
        assert len(sizes) == 4 and sum(sizes) == (tokens - 21) * 48
        assert max(sizes) - min(sizes) <= 16 * 48


def test_more_stripes_than_replicas_are_as_many_as_replicas() -> None:
    plan = latents()
    found = [plan.descriptors(RANK, np.arange(40), np.arange(40), 640, stripes=count) for count in (4, 10**12)]
    assert [rows.num_rows for rows in found] == [4 * 2, 4 * 2]


def test_stripes_begin_at_the_source_that_the_salt_chooses() -> None:
    plan = latents()
    first = [
        min(rows, key=lambda source: int(rows[source].target_address.min())).tp
        for rows in (plan.descriptors(RANK, range(40), range(40), 640, salt=salt, stripes=4) for salt in range(5))
    ]
    assert first == [0, 1, 2, 3, 0]


def test_a_window_is_striped_over_what_is_left_of_it() -> None:
    model = model_of(SlidingWindowSpec(1, 2, 64), group="window")
    cache = CacheConfig(4, num_blocks=64)
    plan = plan_transfer(engine(model, 4, cache), engine(model, 1, cache))
    table = [-1] * 32 + list(range(16))
    rows = plan.descriptors(RANK, table, table, 192, stripes=4)
    assert [part.total_bytes for part in rows.values()] == [16 * 8] * 4


def test_a_state_belongs_to_the_first_stripe() -> None:
    model = model_of_groups({"latents": [MLAAttentionSpec(2)], "state": [mamba2_of(1, 2)]})
    cache = CacheConfig(16, num_blocks=8)
    plan = plan_transfer(engine(model, 2, cache), engine(model, 1, cache))
    tables = [[1, 2, 3, 4], [5]]
    parts = [plan.descriptors(RANK, *[tables] * 2, 64, stripes=[stripe]) for stripe in stripes_of(0, 2)]
    whole = plan.descriptors(RANK, *[tables] * 2, 64)
    assert parts[1].total_bytes == 2 * 16 * 4
    assert parts[0].total_bytes == whole.total_bytes - 2 * 16 * 4


def test_what_one_source_has_alone_is_cut_into_no_more_rows() -> None:
    """Each rank has one of two heads, and all of the latents: these alone are two rows for one."""
    model = model_of_groups({"heads": [MLAAttentionSpec(2), heads_of(2)]})
    cache = CacheConfig(16, "NHD", num_blocks=40)
    plan = plan_transfer(engine(model, 2, cache), engine(model, 1, cache))
    counts = [plan.descriptors(RANK, range(40), range(40), 640, stripes=stripes).num_rows for stripes in (1, 2)]
    assert counts[1] == counts[0] + 1
