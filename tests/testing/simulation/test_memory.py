"""Pools give out what was freed last, and content never looks right by luck."""

from __future__ import annotations

import pytest

from kvweave.testing.simulation.ledger import Ledger, Violation
from kvweave.testing.simulation.memory import BlockPool, content, num_blocks, slot_of, state_content
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
    pool.write(blocks, 5, range(7))
    slots = [slot_of(blocks, token) for token in range(7)]
    assert [pool.labels[slot] for slot in slots] == [content(5, token) for token in range(7)]
    pool.give_back(blocks, 1)
    assert all(label < 0 for label in pool.labels)


def test_state_is_written_over(pool: BlockPool) -> None:
    (block,) = pool.take(1, owner=1)
    for num_tokens in (3, 5):
        pool.write_state(block, 1, num_tokens)
    assert pool.labels[slot_of((block,), 0)] == state_content(1, 5)


def test_no_two_contents_are_equal() -> None:
    made = [kind(serial, token) for kind in (content, state_content) for serial in range(3) for token in range(40)]
    assert len(set(made)) == len(made)


def test_blocks_are_counted_whole() -> None:
    assert [num_blocks(num_tokens) for num_tokens in (1, 4, 5)] == [1, 1, 2]


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
