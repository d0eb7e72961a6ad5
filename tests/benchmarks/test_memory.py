from __future__ import annotations

import pytest

from kvweave.benchmarks.memory import CacheShape, EngineMemory, consecutive, scattered

SHAPE = CacheShape(piece_bytes=512, num_blocks=6, layers=3)


@pytest.fixture
def memory() -> EngineMemory:
    labelled = EngineMemory(SHAPE)
    labelled.label()
    return labelled


def test_a_piece_is_one_block_of_one_layer() -> None:
    (rank,) = SHAPE.layout().ranks
    assert [region.nbytes for region in rank.regions] == [512 * 6] * 3
    assert SHAPE.request_bytes(4) == 4 * 3 * 512 and SHAPE.blocks_for(6_000) == 4


def test_labels_are_where_they_belong(memory: EngineMemory) -> None:
    assert memory.wrong_blocks(consecutive(6), consecutive(6)) == 0
    assert memory.wrong_blocks([0, 1, 2], [0, 2, 1]) == 2 * 3


def test_one_wrong_byte_is_found(memory: EngineMemory) -> None:
    memory.layers[1].view("uint8")[512 * 2 + 511] ^= 1
    assert memory.wrong_blocks(consecutive(6), consecutive(6)) == 1


def test_blank_memory_has_no_label(memory: EngineMemory) -> None:
    memory.clear()
    assert memory.wrong_blocks(consecutive(6), consecutive(6)) == 6 * 3


def test_scattered_blocks_are_distinct_and_the_same_every_time() -> None:
    chosen = scattered(100, 40, seed=3)
    assert len(set(chosen)) == 40 and max(chosen) < 100 and chosen != sorted(chosen)
    assert chosen == scattered(100, 40, seed=3) != scattered(100, 40, seed=4)
