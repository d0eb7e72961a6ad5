"""Rows of one source go apart by the kinds of memory at both ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvweave.core.bundle import LayerPlaces
from kvweave.core.cache_config import MemoryKind
from kvweave.core.layout import RankLayout, Region
from kvweave.core.parallel import RankCoordinates
from kvweave.core.rows import Rows
from kvweave.core.runs import Runs
from kvweave.runtime.memory_kinds import MemoryKinds, split_by_kind

RANK = RankCoordinates(0, 0, 0)
SOURCE = RankLayout(RANK, (Region(0, 8), Region(100, 8, MemoryKind.VRAM, 1), Region(200, 8)), ())
TARGET = RankLayout(RANK, (Region(0, 64, MemoryKind.VRAM, 3),), ())
ROWS = Rows(
    RANK, *(np.array(column, np.uint64) for column in ([0, 100, 200], [0, 8, 16], [8, 8, 8])),
    np.array([0, 1, 2], np.int32), np.zeros(3, np.int32),
)  # fmt: skip


def test_rows_of_unequal_memory_go_apart() -> None:
    parts = list(split_by_kind(MemoryKinds.of(SOURCE), MemoryKinds.of(TARGET), ROWS))
    assert [part.source_address.tolist() for part in parts] == [[0, 200], [100]]
    assert [(part.source_memory, part.source_device) for part in parts] == [("DRAM", 0), ("VRAM", 1)]
    assert {(part.target_memory, part.target_device) for part in parts} == {("VRAM", 3)}


def test_rows_of_one_kind_stay_together() -> None:
    together = replace(ROWS, source_region=np.zeros(3, np.int32))
    (part,) = split_by_kind(MemoryKinds.of(TARGET), MemoryKinds.of(TARGET), together)
    assert part.nbytes.tolist() == [8, 8, 8]


def test_rows_of_layers_stay_a_pattern() -> None:
    places = LayerPlaces(
        np.array([100, 200], np.uint64), np.array([500, 700], np.uint64), np.zeros(2, np.int32), np.zeros(2, np.int32)
    )
    runs = Runs(np.array([0, 8]), np.array([4, 0]), np.array([3, 4]))
    (part,) = split_by_kind(MemoryKinds.of(TARGET), MemoryKinds.of(TARGET), Rows.repeated(RANK, places, runs))
    assert part.repeats is not None
    assert part.source_address.tolist() == [100, 108, 200, 208]
    assert part.target_address.tolist() == [504, 500, 704, 700]
    assert part.nbytes.tolist() == [3, 4, 3, 4]
    assert (part.source_memory, part.source_device, part.target_memory) == ("VRAM", 3, "VRAM")
