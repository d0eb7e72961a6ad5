from __future__ import annotations

import numpy as np
import pytest

from kvweave.core.block_table import NULL_BLOCK, BlockTable, name_tables
from kvweave.errors import BlockTableError


def table(*blocks: int) -> BlockTable:
    return name_tables("source", ["full"], list(blocks))["full"]


def positions(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    "given", [[3, 1], (3, 1), np.array([3, 1], dtype=np.int32), [[3, 1]], {"full": [3, 1]}], ids=repr
)
def test_one_group_may_be_given_in_any_form(given: object) -> None:
    assert name_tables("source", ["full"], given)["full"].blocks.tolist() == [3, 1]


def test_several_groups_are_given_in_order_or_by_name() -> None:
    in_order = name_tables("target", ["full", "state"], [[3, 1], [2]])
    by_name = name_tables("target", ["full", "state"], {"state": [2], "full": [3, 1]})
    for group in ("full", "state"):
        assert in_order[group].blocks.tolist() == by_name[group].blocks.tolist()


def test_an_empty_table_is_a_table() -> None:
    assert table().lookup(positions(), 4).tolist() == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1], [2], [3]], "3 tables for the groups full, state; give one table per group"),
        ({"full": [1]}, r"missing groups \['state'\]; the engine's groups are full, state"),
        ({"full": [1], "states": [2], "state": [3]}, r"unknown groups \['states'\]"),
        (
            {"full": [1, 2, 1], "state": [3]},
            "group full: block 1 appears twice; each position needs a block of its own",
        ),
        ({"full": [1.5], "state": [3]}, "group full: 1 dimensions of float64, wanted one dimension of whole numbers"),
        ({"full": [True], "state": [3]}, "group full: 1 dimensions of bool"),
        ({"full": ["a"], "state": [3]}, "group full: 1 dimensions of <U1"),
        ({"full": [[1, 2]], "state": [3]}, "group full: 2 dimensions of int64"),
        ({"full": [[1], [2, 3]], "state": [3]}, "group full: rows of different lengths"),
        ({"full": [2**64 - 1], "state": [3]}, "group full: block 18446744073709551615 is no id"),
        ({"full": [2**70], "state": [3]}, "group full: 1 dimensions of object"),
        ({"full": [None], "state": [3]}, "group full: 1 dimensions of object"),
        (None, "None is no table; give one sequence of block ids per group"),
        (7, "7 is no table"),
    ],
    ids=str,
)
def test_malformed_tables_are_refused_by_side_and_group(given: object, message: str) -> None:
    with pytest.raises(BlockTableError, match=f"source blocks.*{message}"):
        name_tables("source", ["full", "state"], given)


def test_null_blocks_may_repeat() -> None:
    assert table(NULL_BLOCK, NULL_BLOCK, 4).lookup(positions(0, 2), 5).tolist() == [NULL_BLOCK, 4]


def test_a_table_too_short_names_both_lengths() -> None:
    with pytest.raises(BlockTableError, match="group full: 2 blocks, but the tokens need 3; give the whole table"):
        table(0, 1).require(3)


@pytest.mark.parametrize("wrong", [4, 2**31, 2**62, -2, -(2**31)])
def test_an_id_out_of_range_names_it_and_the_pool(wrong: int) -> None:
    with pytest.raises(BlockTableError, match=f"block {wrong} is not below num_blocks 4; give ids of this engine"):
        table(0, wrong).lookup(positions(0, 1), 4)


@pytest.mark.parametrize(("scratch", "running"), [(0, 3), (1, 2), (2, 1)])
def test_the_running_block_stands_before_the_scratch_blocks(scratch: int, running: int) -> None:
    assert table(NULL_BLOCK, 1, 2, 3).running_block(scratch, 4) == running


def test_a_state_without_a_running_block_is_refused() -> None:
    with pytest.raises(BlockTableError, match="2 blocks, of which 2 are scratch; a state needs one running block"):
        table(1, 2).running_block(2, 4)


def test_a_null_running_block_is_refused() -> None:
    with pytest.raises(BlockTableError, match="the running block is null; give its id"):
        table(1, NULL_BLOCK).running_block(0, 4)
