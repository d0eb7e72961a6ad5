"""Which kind of memory a row lies in, at both ends: a read has one kind and one device on each side.

::

    source regions   DRAM DRAM VRAM:0        rows of a source, apart: DRAM -> VRAM:1, VRAM:0 -> VRAM:1
    target regions   VRAM:1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvweave.core.layout import RankLayout
from kvweave.core.rows import Rows
from kvweave.transport.rows import ReadRows


@dataclass(frozen=True, slots=True)
class MemoryKinds:
    """The kinds of memory (and devices) that a rank has, and which of them each of its regions is, numbered."""

    kinds: tuple[tuple[str, int], ...]
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]]

    @classmethod
    def of(cls, rank: RankLayout) -> MemoryKinds:
        """Those of one rank."""
        places = [(region.memory.value, region.device) for region in rank.regions]
        kinds = tuple(dict.fromkeys(places))
        return cls(kinds, np.array([kinds.index(place) for place in places], dtype=np.int64))


def split_by_kind(there: MemoryKinds, here: MemoryKinds, rows: Rows) -> Iterator[ReadRows]:
    """The rows of one source, apart by memory kind and device of both ends."""
    if len(there.kinds) == len(here.kinds) == 1:
        yield _of_one_kind(rows, *there.kinds[0], *here.kinds[0])
        return
    kinds = there.numbers[rows.source_region] * len(here.kinds) + here.numbers[rows.target_region]
    for kind in np.unique(kinds).tolist():
        chosen = kinds == kind
        yield ReadRows(
            rows.source_address[chosen], rows.target_address[chosen], rows.nbytes[chosen],
            *there.kinds[kind // len(here.kinds)], *here.kinds[kind % len(here.kinds)],
        )  # fmt: skip


def _of_one_kind(rows: Rows, *kinds: Any) -> ReadRows:
    if rows.repeats is None:
        return ReadRows(rows.source_address, rows.target_address, rows.nbytes, *kinds)
    places, runs = rows.repeats
    source, target, nbytes = (column.astype(np.uint64) for column in runs)
    pattern = ReadRows(source, target, nbytes, *kinds)
    return ReadRows.repeated(places.source, places.target, pattern)
