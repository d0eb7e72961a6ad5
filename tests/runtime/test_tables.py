"""Block tables of the embedding engine are checked before they are used."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.errors import BlockTableError
from kvweave.runtime.tables import checked_tables
from tests.protocol.examples import small_layout


@pytest.mark.parametrize(
    "blocks", [{"full": [5, 0, 7]}, [5, 0, 7], np.array([5, 0, 7])], ids=["named", "alone", "array"]
)
def test_tables_come_out_as_plain_numbers(blocks: object) -> None:
    assert checked_tables("source", small_layout(), blocks) == {"full": (5, 0, 7)}


def test_null_blocks_are_kept() -> None:
    assert checked_tables("source", small_layout(), [-1, 3]) == {"full": (-1, 3)}


@pytest.mark.parametrize("blocks", [[8], [-2], {"other": [1]}, [[1.5]], {}], ids=str)
def test_wrong_tables_are_named(blocks: object) -> None:
    with pytest.raises(BlockTableError, match="source blocks"):
        checked_tables("source", small_layout(), blocks)
