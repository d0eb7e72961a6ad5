"""Pieces of the simulated engines are those of the planner, and what is read of them is what the core would read."""

from __future__ import annotations

import pytest

from kvweave.core.plan import plan_transfer
from kvweave.core.portion import Portion
from kvweave.core.stripes import Stripe
from kvweave.protocol.effects import PostReads
from kvweave.testing.simulation.memory import content, state_content
from kvweave.testing.simulation.scenario import LARGE_HEAD, Shape
from kvweave.testing.simulation.shapes import (
    Wanted,
    layout_of,
    rank_numbers,
    reads_of,
    slot_pairs,
    tables_fit,
    wrong_blocks,
)

MIXED = Shape(1, 16, mixed=True)
TABLES = {"full": (9, 8, 7), "window": (-1, 6, 5), "state": (4,)}
TARGETS = {"full": (0, 1, 2), "window": (-1, 3, 4), "state": (5,)}


def command(portion: Portion | None = None, num_tokens: int = 10, **tables: tuple[int, ...]) -> PostReads:
    return PostReads(1, "address", TABLES | tables, TARGETS, 2, num_tokens, 0, portion=portion)


@pytest.mark.parametrize(
    ("source", "target", "sources"),
    [
        (1, 1, [[(0,)]]),
        (4, 2, [[(0, 1)], [(2, 3)]]),
        (2, 1, [[(0,), (1,)]]),
        (4, 4, [[(0, 1)], [(0, 1)], [(2, 3)], [(2, 3)]]),
    ],
    ids=["one to one", "replicas", "two sources", "replicas to replicas"],
)
def test_pieces_name_their_replicas(source: int, target: int, sources: list[list[tuple[int, ...]]]) -> None:
    numbers = rank_numbers(Shape(source, 8))
    found = [
        [tuple(numbers[end.coordinates] for end in piece.sources) for piece in rank.pieces]
        for rank in reads_of(Shape(source, 8), Shape(target, 8))
    ]
    assert found == sources


@pytest.mark.parametrize("shape", [Shape(4, 8), Shape(4, 8, 1, LARGE_HEAD, mixed=True)], ids=["plain", "mixed"])
def test_layout_is_one_that_can_be_planned(shape: Shape) -> None:
    assert plan_transfer(layout_of(shape), layout_of(Shape(2, 12, shape.heads, shape.head_size, shape.mixed))).reads


@pytest.mark.parametrize(
    ("portion", "tokens"),
    [(None, (8, 6, 1)), (Portion(6, others=False), (4, 0, 0)), (Portion(9, others=True), (1, 6, 1))],
    ids=["at once", "a chunk", "the last part"],
)
def test_chunk_moves_what_stays_and_the_last_part_the_rest(portion: Portion | None, tokens: tuple[int, ...]) -> None:
    (rank,) = reads_of(MIXED, MIXED)
    pairs = {piece.target.group: slot_pairs(piece, command(portion), Stripe(0)) for piece in rank.pieces}
    assert (len(pairs["full"]), len(pairs["window"]), len(pairs["state"])) == tokens
    assert pairs["full"][-1] == (29, 9)


def test_stripes_are_all_of_a_request_and_the_state_is_in_the_first() -> None:
    (rank,) = reads_of(MIXED, MIXED)
    for piece in rank.pieces:
        stripes = [slot_pairs(piece, command(), Stripe(number, number, 3)) for number in range(3)]
        assert [pair for stripe in stripes for pair in stripe] == slot_pairs(piece, command(), Stripe(0))
        if piece.target.group == "state":
            assert [len(stripe) for stripe in stripes] == [1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"full": (9, 8)}, False),
        ({"full": (16, 8, 7)}, False),
        ({"window": (-1, 6, -1)}, False),
        ({"window": (-1, 6)}, False),
        ({"state": ()}, False),
    ],
    ids=["all there", "too short", "no such block", "window moved on", "window too short", "no state"],
)
def test_tables_that_do_not_fit_are_seen_before_anything_is_read(
    changes: dict[str, tuple[int, ...]], fits: bool
) -> None:
    assert tables_fit(command(**changes), MIXED) is fits


def test_blocks_with_other_content_are_found() -> None:
    wanted = Wanted(TARGETS, 2, 10, serial=3)
    right = {(0, 0, slot): content(3, slot) for slot in range(2, 10)}
    window = {token: (3 if token < 8 else 4) * 4 + token % 4 for token in range(6, 10)}
    right |= {(0, 1, slot): content(3, token) for token, slot in window.items()}
    right |= {(0, 2, 20): state_content(3, 10)}
    assert set(wrong_blocks(MIXED, MIXED, wanted, lambda *where: right.get(where))) == set()
    right[0, 0, 9] = content(2, 9)
    assert set(wrong_blocks(MIXED, MIXED, wanted, lambda *where: right.get(where))) == {(0, 2)}
