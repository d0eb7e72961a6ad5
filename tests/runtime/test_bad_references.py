"""References that are stale, wrong or made up: an error, never an answer from other bytes, a counter on both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvweave.errors import KVWeaveError
from kvweave.runtime import OfferReference
from tests.runtime.pair import PATIENCE, TARGET_BLOCKS, Pair, joined, wait_until
from tests.runtime.ways import over_nixl, transport_of


def unknown(pair: Pair) -> OfferReference:
    return replace(pair.offer(), request_id="nobody asked for this")


def reused(pair: Pair) -> OfferReference:
    """The id is used for a second offer; the first one's reference comes back."""
    first = pair.offer()
    pair.prefill.withdraw(first)
    pair.offer()
    return first


def wrong_generation(pair: Pair) -> OfferReference:
    made = pair.offer()
    return replace(made, generation=made.generation + 7)


def out_of_range(pair: Pair) -> OfferReference:
    return replace(pair.offer(), tables={"full": (9, 3, 12, 0, 10**6)})


def other_blocks(pair: Pair) -> OfferReference:
    return replace(pair.offer(), tables={"full": (9, 3, 12, 0, 8)})


def wrong_engine(pair: Pair) -> OfferReference:
    return replace(pair.offer(), engine_id="prefill-of-yesterday")


BAD = [
    pytest.param(unknown, "unknown_request", "refused", id="unknown request"),
    pytest.param(reused, "withdrawn", "refused", id="reused id"),
    pytest.param(wrong_generation, "wrong_generation", "refused", id="wrong generation"),
    pytest.param(out_of_range, "wrong_reference", None, id="blocks out of range"),
    pytest.param(other_blocks, "wrong_reference", None, id="blocks of another request"),
    pytest.param(wrong_engine, "wrong_engine", "refused", id="wrong engine"),
]


@pytest.mark.parametrize("transport", ["memory", *over_nixl()])
@pytest.mark.parametrize(("make", "reason", "counter"), BAD)
def test_bad_reference_is_an_error_and_a_counter_and_never_an_answer(
    make: Callable[[Pair], OfferReference], reason: str, counter: str | None, transport: str
) -> None:
    with joined(transport=transport_of(transport)) as pair:
        with pytest.raises(KVWeaveError):
            pair.decode.fetch(make(pair), TARGET_BLOCKS).result(PATIENCE)
        assert pair.decode.metrics().by_label("failed") == {reason: 1}
        if counter:
            wait_until(lambda: pair.prefill.metrics().by_label(counter) == {reason: 1})


@pytest.mark.parametrize(
    ("make", "reason"), [pytest.param(param.values[0], param.values[1], id=param.id) for param in BAD]
)
def test_good_reference_works_after_a_bad_one(make: Callable[[Pair], OfferReference], reason: str) -> None:
    with joined() as pair:
        with pytest.raises(KVWeaveError):
            pair.decode.fetch(make(pair), TARGET_BLOCKS).result(PATIENCE)
        pair.decode.fetch(pair.offer("good"), TARGET_BLOCKS).result(PATIENCE)
        assert pair.wrong_bytes() == 0
        assert pair.decode.metrics().total("failed", reason) == 1
