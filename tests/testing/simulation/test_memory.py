"""Pools give out what was freed last, and content never looks right by luck."""

from __future__ import annotations

import pytest

from kvweave.testing.simulation.ledger import Ledger, Violation
from kvweave.testing.simulation.memory import BlockPool, content
from kvweave.testing.simulation.schedule import Schedule


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool("engine", 4, Ledger(Schedule()))


def test_freed_blocks_are_given_out_next(pool: BlockPool) -> None:
    first = pool.take(2, owner=1)
    pool.give_back(first, 1)
    assert pool.take(2, owner=2) == first


def test_freed_block_holds_foreign_content_at_once(pool: BlockPool) -> None:
    blocks = pool.take(2, owner=1)
    pool.write(blocks, 5, range(2))
    assert [pool.labels[block] for block in blocks] == [content(5, 0), content(5, 1)]
    pool.give_back(blocks, 1)
    assert all(pool.labels[block] < 0 for block in blocks)


def test_blocks_are_freed_once_and_by_their_owner(pool: BlockPool) -> None:
    blocks = pool.take(1, owner=1)
    with pytest.raises(Violation, match="block 3 is freed, but not held"):
        pool.give_back(blocks, 2)
    pool.give_back(blocks, 1)
    with pytest.raises(Violation, match="not held"):
        pool.give_back(blocks, 1)


def test_pool_knows_what_is_held(pool: BlockPool) -> None:
    (block,) = pool.take(1, owner=7)
    assert (pool.free, pool.held, pool.owner(block)) == (3, 1, 7)
