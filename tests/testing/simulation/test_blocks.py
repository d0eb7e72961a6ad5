"""Tables of a simulated request: all of it, a window's last blocks, and a state."""

from __future__ import annotations

import pytest

from kvweave.testing.simulation.blocks import Blocks, blocks_needed, first_visible
from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.memory import BlockPool, content, slot_of, state_content
from kvweave.testing.simulation.scenario import Shape
from kvweave.testing.simulation.schedule import Schedule

MIXED = Shape(1, 16, mixed=True)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool("engine", 16, Ledger(Schedule()))


@pytest.mark.parametrize(
    ("shape", "num_tokens", "needed"),
    [(Shape(1, 16), 18, 5), (MIXED, 18, 9), (MIXED, 3, 3)],
    ids=["keeps all", "with window and state", "shorter than the window"],
)
def test_request_takes_what_it_needs(pool: BlockPool, shape: Shape, num_tokens: int, needed: int) -> None:
    Blocks.take(pool, shape, num_tokens, owner=1).give_back(pool)
    assert pool.held == 0
    Blocks.take(pool, shape, num_tokens, owner=1)
    assert pool.held == blocks_needed(shape, num_tokens) == needed


def test_window_holds_its_last_tokens_and_the_state_is_that_of_the_last(pool: BlockPool) -> None:
    blocks = Blocks.take(pool, MIXED, 18, owner=1)
    for first, stop in ((0, 6), (6, 15), (15, 18)):
        blocks.compute(pool, first, stop)
    tables = blocks.tables(18)
    assert tables["window"][:3] == (-1, -1, -1)
    for token in range(first_visible(18), 18):
        assert pool.labels[slot_of(tables["window"], token)] == content(1, token)
    assert pool.labels[slot_of(tables["state"], 0)] == state_content(1, 18)


def test_tables_of_a_chunk_name_only_what_stays(pool: BlockPool) -> None:
    blocks = Blocks.take(pool, MIXED, 18, owner=1)
    assert blocks.kept_tables(6) == {"full": blocks.kept[:2], "window": (), "state": ()}
    assert blocks.slots(0, 5) == {slot_of(blocks.kept, token) for token in range(5)}
