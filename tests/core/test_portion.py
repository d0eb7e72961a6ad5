"""Portions of a request: chunks of what keeps all tokens, and the rest at the end, are together the whole request."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvweave.core.array import Axis, CacheArray, ChunkReach, DType, TokenAxis, WindowReach
from kvweave.core.cache_config import CacheConfig
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.portion import Portion, keeps_all_tokens
from kvweave.core.spec import SlidingWindowSpec
from kvweave.errors import BlockTableError, ConfigurationError
from kvweave.testing.oracle import Oracle
from kvweave.testing.requests import Request
from tests.core.engines import deepseek_v4, engine, heads_of, mamba2_of, model_of_groups, request_between

NUM_TOKENS = 300


def array(tokens: TokenAxis | None) -> CacheArray:
    return CacheArray("part", (Axis("dim", 8),), DType.of("float32"), tokens)


@pytest.mark.parametrize(
    ("tokens", "keeps"),
    [(TokenAxis(), True), (TokenAxis(128), True), (None, False)]
    + [(TokenAxis(reach=reach), False) for reach in (WindowReach(4), ChunkReach(4))],
    ids=["all tokens", "compressed", "state", "window", "chunk"],
)
def test_only_what_keeps_all_tokens_moves_early(tokens: TokenAxis | None, keeps: bool) -> None:
    assert keeps_all_tokens(array(tokens)) is keeps
    assert Portion(0, others=False).moves(array(tokens)) is keeps
    assert Portion(0, others=True).moves(array(tokens))


@pytest.mark.parametrize("start", [-1, 1.5, True])
def test_a_portion_begins_at_a_token(start: object) -> None:
    with pytest.raises(ConfigurationError, match="kept_start"):
        Portion(start, others=False)


MODELS = {
    "windows": model_of_groups({"full": [heads_of(4)], "window.32": [SlidingWindowSpec(4, 2, sliding_window=32)]}),
    "states": model_of_groups({"full": [heads_of(4)], "state": [mamba2_of(2, 4)]}),
    "compressed": deepseek_v4(),
}


def between(name: str, num_tokens: int = NUM_TOKENS, start_token: int = 0) -> tuple[TransferPlan, Request]:
    """A plan, and a request with blocks in random order."""
    prefill = engine(MODELS[name], 2, CacheConfig(16, "HND", num_blocks=40))
    decode = engine(MODELS[name], 1, CacheConfig(48, "NHD", num_blocks=20))
    return plan_transfer(prefill, decode), request_between(Oracle(prefill, decode), num_tokens, start_token)


def copies(rows: object) -> set[tuple[str, int, int]]:
    """Every byte that moves, as source rank, source and target address; none twice."""
    found = [
        (str(source), int(a) + n, int(b) + n)
        for source, part in rows.items()
        for a, b, size in zip(part.source_address, part.target_address, part.nbytes, strict=True)
        for n in range(int(size))
    ]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.parametrize("start_token", [0, 21], ids=["from the beginning", "behind a prefix"])
@pytest.mark.parametrize("name", MODELS)
def test_chunks_and_the_rest_are_the_whole_request_each_byte_once(name: str, start_token: int) -> None:
    plan, request = between(name, start_token=start_token)
    (target,) = plan.decode.ranks

    def rows(num_tokens: int, start: int, portion: Portion | None = None) -> set[tuple[str, int, int]]:
        return copies(plan.descriptors(target, request.source, request.target, num_tokens, start, portion=portion))

    cuts = [start_token, 64, 70, 200]
    parts = [rows(stop, start, Portion(start, others=False)) for start, stop in pairwise(cuts)]
    parts.append(rows(NUM_TOKENS, start_token, Portion(cuts[-1], others=True)))
    assert all(parts)
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert set().union(*parts) == rows(NUM_TOKENS, start_token)


@pytest.mark.parametrize("outside", [9, 101])
def test_a_portion_lies_within_the_tokens_that_move(outside: int) -> None:
    plan, request = between("windows", 100)
    with pytest.raises(BlockTableError, match=f"kept_start {outside}"):
        plan.descriptors(
            plan.decode.ranks[0], request.source, request.target, 100, 10, portion=Portion(outside, others=False)
        )


def test_tables_of_what_does_not_move_may_be_empty() -> None:
    plan, request = between("states", 64)
    (target,) = plan.decode.ranks
    source = {**request.source, "state": []}
    assert plan.descriptors(target, source, request.target, 64, portion=Portion(0, others=False)).total_bytes > 0
    with pytest.raises(BlockTableError):
        plan.descriptors(target, source, request.target, 64)
