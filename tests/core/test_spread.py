"""The spread over replicas: large requests from all of them, small ones from the least loaded, engines apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.cache_config import CacheConfig
from kvweave.core.model import ModelCache
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.replicas import choose
from kvweave.core.spec import MLAAttentionSpec, SlidingWindowSpec
from kvweave.core.spread import MOST_TURNS, STRIPE_BYTES, Spread
from kvweave.core.stripes import Stripe
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

TOKEN_BYTES = 1 << 10
LATENT = model_of(MLAAttentionSpec(TOKEN_BYTES // 2))
CACHE = CacheConfig(64, num_blocks=2)


def plan_of(model: ModelCache = LATENT, prefill_tp: int = 4, decode_tp: int = 1) -> TransferPlan:
    return plan_transfer(engine(model, prefill_tp, CACHE), engine(model, decode_tp, CACHE))


def spread_of(plan: TransferPlan, rank: int = 0) -> Spread:
    return Spread(plan.of(plan.decode.ranks[rank]))


def tp(*numbers: int) -> list[RankCoordinates]:
    return [RankCoordinates(tp=number) for number in numbers]


def loads(*nbytes: int) -> dict[RankCoordinates, int]:
    return {source: load for source, load in zip(tp(*range(len(nbytes))), nbytes, strict=True) if load}


def tokens_of(nbytes: int) -> int:
    return nbytes // TOKEN_BYTES


def served(plan: TransferPlan, stripes: tuple[Stripe, ...]) -> list[int]:
    """The source of each stripe of latents."""
    (read,) = plan.of(plan.decode.ranks[0])
    return [choose(read, stripe.turn).coordinates.tp for stripe in stripes]


@pytest.mark.parametrize(
    ("nbytes", "count"),
    [(64, 1), (2 * STRIPE_BYTES - TOKEN_BYTES, 1), (2 * STRIPE_BYTES, 2), (4 * STRIPE_BYTES, 4), (2**40, 4)],
    ids=["tiny", "small", "two stripes", "four", "huge"],
)
def test_a_request_has_as_many_stripes_as_are_large_enough_and_as_there_are_replicas(nbytes: int, count: int) -> None:
    stripes = spread_of(plan_of()).stripes(3, 5, 5 + tokens_of(nbytes), {})
    assert len(stripes) == count
    assert sorted(served(plan_of(), stripes)) == sorted({(3 + number) % 4 for number in range(count)})


@pytest.mark.parametrize(
    ("in_flight", "salt", "source"),
    [((9, 0, 4, 0), 2, 3), ((9, 0, 4, 0), 0, 1), ((1, 2, 0, 5), 1, 2), ((7, 7, 7, 7), 2, 2), ((), 3, 3)],
    ids=["next of two", "first of two", "the one", "all alike", "idle"],
)
def test_a_small_request_goes_to_the_least_loaded_and_of_these_to_the_next(
    in_flight: tuple[int, ...], salt: int, source: int
) -> None:
    assert served(plan_of(), spread_of(plan_of()).stripes(salt, 0, 10, loads(*in_flight))) == [source]


def test_fewer_stripes_than_replicas_go_where_least_is_in_flight_together() -> None:
    stripes = spread_of(plan_of()).stripes(0, 0, tokens_of(2 * STRIPE_BYTES), loads(5, 1, 1, 6))
    assert served(plan_of(), stripes) == [1, 2]


SIZES = st.lists(st.integers(1, 3 * tokens_of(STRIPE_BYTES)), min_size=1, max_size=30)


@given(SIZES, st.integers(0, 2**32), st.integers(2, 5))
def test_bytes_in_flight_of_equal_replicas_differ_by_one_request_at_most(
    tokens: list[int], salt: int, replicas: int
) -> None:
    plan, in_flight = plan_of(prefill_tp=replicas), Counter[RankCoordinates]()
    spread = spread_of(plan)
    for number, count in enumerate(tokens):
        post(plan, spread.stripes(salt + number, 0, count, in_flight), count * TOKEN_BYTES, in_flight)
        each = [in_flight[source] for source in tp(*range(replicas))]
        assert max(each) - min(each) <= max(tokens) * TOKEN_BYTES


def post(plan: TransferPlan, stripes: tuple[Stripe, ...], nbytes: int, in_flight: Counter[RankCoordinates]) -> None:
    """Counts a request of latents as being read."""
    for source in tp(*served(plan, stripes)):
        in_flight[source] += nbytes // len(stripes)


def total(plan: TransferPlan, salts: Mapping[str, int], requests: int, tokens: int) -> Counter[RankCoordinates]:
    """What all sources give when every engine posts so many requests at once."""
    everything = Counter[RankCoordinates]()
    for salt in salts.values():
        spread, in_flight = spread_of(plan), Counter[RankCoordinates]()
        for number in range(requests):
            post(plan, spread.stripes(salt + number, 0, tokens, in_flight), tokens * TOKEN_BYTES, in_flight)
        everything += in_flight
    return everything


SALTS = [{"a": 0, "b": 1, "c": 2, "d": 3}, {"a": 7, "b": 7, "c": 7, "d": 7}]


@pytest.mark.parametrize("salts", SALTS, ids=["salted apart", "the same counter"])
@pytest.mark.parametrize("tokens", [10, tokens_of(5 * STRIPE_BYTES)], ids=["small", "striped"])
def test_engines_that_read_at_once_load_all_sources_alike(salts: dict[str, int], tokens: int) -> None:
    found = total(plan_of(), salts, 8, tokens)
    assert set(found.values()) == {sum(found.values()) // 4} and len(found) == 4


def test_ranks_that_choose_at_once_begin_at_different_replicas() -> None:
    plan = plan_of(decode_tp=4)
    first = [choose(plan.of(rank)[0], spread_of(plan, number).stripes(6, 0, 10, {})[0].turn).coordinates.tp
             for number, rank in enumerate(plan.decode.ranks)]  # fmt: skip
    assert sorted(first) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("replicas", "ranks", "stripes"),
    [(8, 2, 4), (4, 4, 1), (2, 4, 1), (4, 3, 4)],
    ids=["fewer ranks", "as many ranks", "more ranks", "ranks that do not divide"],
)
def test_ranks_of_one_engine_share_the_replicas(replicas: int, ranks: int, stripes: int) -> None:
    """One large request, which every rank of the engine wants: together they read from all replicas alike."""
    plan, found = plan_of(prefill_tp=replicas, decode_tp=ranks), Counter[RankCoordinates]()
    for number, rank in enumerate(plan.decode.ranks):
        (read,) = plan.of(rank)
        chosen = spread_of(plan, number).stripes(5, 0, tokens_of(2**40), {})
        assert len(chosen) == stripes
        found.update({choose(read, stripe.turn).coordinates: 12 // stripes for stripe in chosen})
    assert len(found) == replicas and len(set(found.values())) == 1


def test_what_one_source_has_alone_neither_stripes_nor_decides() -> None:
    model = model_of_groups({"heads": [heads_of(4, TOKEN_BYTES), MLAAttentionSpec(2)]})
    plan = plan_of(model)
    (stripe,) = spread_of(plan).stripes(0, 0, 10**5, loads(9, 5, 1, 5))
    latent = next(read for read in plan.of(plan.decode.ranks[0]) if len(read.sources) > 1)
    assert choose(latent, stripe.turn).coordinates.tp == 2


def test_requests_without_replicas_or_tokens_are_whole() -> None:
    plan = plan_of(model_of(heads_of(4, TOKEN_BYTES)))
    assert spread_of(plan).stripes("request-7", 0, 10**6, loads(1))[0].count == 1
    assert spread_of(plan_of()).stripes(3, 10**6, 10**6, {})[0].count == 1


def test_a_window_and_a_state_count_what_is_left_of_them() -> None:
    """The window's 64 tokens, and one state: far below a stripe, whatever the request's length."""
    window = SlidingWindowSpec(1, TOKEN_BYTES // 4, 64)
    model = model_of_groups({"window": [window], "state": [mamba2_of(1, 4)]})
    assert len(spread_of(plan_of(model)).stripes(0, 0, 10**7, {})) == 1


def test_shares_of_the_tokens_count_as_such() -> None:
    """Under dcp 2 either of two pairs of ranks has every second token of latents."""
    prefill = engine(LATENT, 4, CACHE, dcp=2)
    spread = spread_of(plan_transfer(prefill, engine(LATENT, 1, CACHE)))
    assert [len(spread.stripes(0, 0, tokens_of(nbytes), {})) for nbytes in (STRIPE_BYTES, 2 * STRIPE_BYTES)] == [1, 2]


def test_so_many_replicas_as_no_request_is_worth_are_used_in_turn() -> None:
    plan = plan_of(prefill_tp=2 * MOST_TURNS)
    stripes = spread_of(plan).stripes(MOST_TURNS + 3, 0, tokens_of(2**40), {})
    assert served(plan, stripes) == [(MOST_TURNS + 3 + number) % (2 * MOST_TURNS) for number in range(MOST_TURNS)]
