"""Replicated latents: read once, from replicas in turn; and dealt out under decode context parallelism."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.layout import EngineLayout
from kvweave.core.model import ModelCache
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.spec import MLAAttentionSpec
from kvweave.core.tokens import TokenShare
from tests.core.engines import engine, faults, heads_of, model_of

MLA = model_of(*[MLAAttentionSpec(4)] * 3, MLAAttentionSpec(2, part="indexer"))
REQUESTS = 1000


def bytes_read(plan: TransferPlan, salts: range) -> Counter[RankCoordinates]:
    """Bytes that requests of these salts read from each prefill rank, over all ranks of the decode engine."""
    read: Counter[RankCoordinates] = Counter({rank.coordinates: 0 for rank in plan.prefill.ranks})
    for salt in salts:
        for target in plan.reads:
            described = plan.descriptors(target, [1, 2], [3, 4], 20, salt=salt)
            read.update({source: rows.total_bytes for source, rows in described.items()})
    return read


def unevenness(read: Counter[RankCoordinates]) -> float:
    return max(read.values()) * len(read) / sum(read.values())


@pytest.mark.parametrize(("p", "d"), [(8, 4), (8, 8), (8, 1), (4, 8), (3, 2), (2, 3)], ids=str)
def test_each_decode_rank_reads_each_latent_once(p: int, d: int) -> None:
    prefill, decode = engine(MLA, p), engine(MLA, d)
    plan = plan_transfer(prefill, decode)
    for target in plan.reads:
        assert sorted(read.array.part for read in plan.of(target)) == ["indexer", "latent"]
        assert len(plan.descriptors(target, [1], [2], 9)) == 1
    assert faults(prefill, decode) == []


@pytest.mark.parametrize(("p", "d"), [(8, 4), (8, 2), (16, 4)], ids=str)
def test_the_ranks_of_one_request_read_from_different_replicas(p: int, d: int) -> None:
    plan = plan_transfer(engine(MLA, p), engine(MLA, d))
    for salt in range(p):
        assert len({plan.sources(target, salt)["full"] for target in plan.reads}) == d


@pytest.mark.parametrize(("p", "d"), [(8, 1), (8, 4), (8, 8), (6, 4), (3, 2)], ids=str)
def test_over_the_requests_all_replicas_are_read_alike(p: int, d: int) -> None:
    plan = plan_transfer(engine(MLA, p), engine(MLA, d))
    assert unevenness(bytes_read(plan, range(p * 3))) == 1


@pytest.mark.parametrize(
    ("model", "p", "d"),
    [
        pytest.param(MLA, 8, 1, id="latents P8>D1"),
        pytest.param(model_of(heads_of(2)), 8, 1, id="two heads P8>D1"),
        pytest.param(model_of(heads_of(4)), 8, 2, id="four heads P8>D2"),
        pytest.param(model_of(heads_of(2), MLAAttentionSpec(3, part="indexer")), 8, 4, id="heads and indexer P8>D4"),
    ],
)
@pytest.mark.parametrize("counting", ["one counter", "a counter each"])
def test_eight_engines_read_evenly_over_a_thousand_requests(model: ModelCache, p: int, d: int, counting: str) -> None:
    """A counter of requests is the salt, whether the prefill engine's or each decode engine's own."""
    prefill = engine(model, p)
    plans = [plan_transfer(prefill, engine(model, d)) for _ in range(8)]
    total: Counter[RankCoordinates] = Counter()
    for number, plan in enumerate(plans):
        salts = range(number, REQUESTS, 8) if counting == "one counter" else range(REQUESTS // 8)
        total += bytes_read(plan, salts)
    assert len(total) == p and unevenness(total) <= 1.05


def test_one_request_has_one_choice_for_all_layers_and_arrays() -> None:
    plan = plan_transfer(engine(MLA, 8), engine(MLA, 4))
    for salt in (0, 5, "request-17", "9f3c-a"):
        for target in plan.reads:
            assert len(plan.sources(target, salt)["full"]) == 1
            assert plan.sources(target, salt) == plan.sources(target, salt)


def interleaved(tp: int, dcp: int) -> EngineLayout:
    return engine(MLA, tp, CacheConfig(4, num_blocks=14), dcp=dcp, interleave=4)


def test_thirteen_blocks_are_dealt_out_in_turn() -> None:
    shares = [TokenShare(4, rank, 4) for rank in range(4)]
    entries = np.arange(13 * 4)
    assert [share.num_local(13 * 4) // 4 for share in shares] == [4, 3, 3, 3]
    for block in range(13):
        inside = entries[block * 4 : block * 4 + 4]
        assert [bool(share.holds(inside).all()) for share in shares] == [block % 4 == rank for rank in range(4)]
        assert (shares[block % 4].local(inside) // 4 == block // 4).all()


def test_context_ranks_read_from_the_ranks_whose_blocks_they_hold() -> None:
    plan = plan_transfer(interleaved(4, 4), interleaved(2, 2))
    found = {target.tp: {rank.tp for rank in plan.sources(target)["full"]} for target in plan.reads}
    assert found == {0: {0, 2}, 1: {1, 3}}


@pytest.mark.parametrize("num_tokens", [1, 4, 13 * 4 - 1, 13 * 4, 13 * 4 + 1])
@pytest.mark.parametrize(("one", "other"), [(4, 2), (2, 4), (4, 1), (1, 4), (4, 4)], ids=str)
def test_every_token_arrives_under_any_context_parallel_sizes(one: int, other: int, num_tokens: int) -> None:
    assert faults(interleaved(4, one), interleaved(4, other), num_tokens) == []
