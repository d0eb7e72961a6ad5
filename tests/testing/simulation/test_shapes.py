"""Pieces of the simulated engines are those of the planner."""

from __future__ import annotations

import pytest

from kvweave.core.plan import plan_transfer
from kvweave.testing.simulation.scenario import Shape
from kvweave.testing.simulation.shapes import layout_of, pieces_of


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
    pieces = pieces_of(Shape(source, 8), Shape(target, 8))
    assert [[piece.sources for piece in rank] for rank in pieces] == sources


def test_layout_is_one_that_can_be_planned() -> None:
    assert plan_transfer(layout_of(Shape(4, 8)), layout_of(Shape(2, 12))).reads
