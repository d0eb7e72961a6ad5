"""Blocks that several offers share are given back once, by the last who lets go."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
from kvweave.engines.hf.pinned import PinnedTables

TABLES = {"full": [1, 2]}


def test_the_last_holder_frees_the_blocks_once() -> None:
    freed: list[object] = []
    pinned = PinnedTables(TABLES, freed.append)
    pinned.hold()
    pinned.hold()
    for _ in range(2):
        pinned.let_go("whatever was released")
        assert freed == []
    pinned.let_go()
    assert freed == [TABLES]


def test_without_offers_the_request_frees_them() -> None:
    freed: list[object] = []
    PinnedTables(TABLES, freed.append).let_go()
    assert freed == [TABLES]
