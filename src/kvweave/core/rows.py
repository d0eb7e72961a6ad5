"""The rows that one target rank reads from one source rank: runs at the places of layers, and where they join.

As long as every layer is read alike and none continues in the next one, rows are the runs of one layer and the places
of all, and nothing is made for each row. Otherwise they are columns, sorted and joined::

    runs [0, 64) [128, 192)   places 4096, 8192     ->   4096, 4224, 8192, 8320
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvweave.core.bundle import LayerPlaces
from kvweave.core.parallel import RankCoordinates
from kvweave.core.runs import Runs

Addresses = npt.NDArray[np.uint64]

FEW_ROWS = 1024
"""Fewer rows than that are columns from the beginning, which is cheaper then."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What one target rank reads from one source rank: row n copies ``nbytes[n]`` bytes between two addresses.

    Addresses and sizes are uint64; the regions say in which registered region of either rank a row lies.
    """

    source: RankCoordinates
    source_address: Addresses
    target_address: Addresses
    nbytes: Addresses
    source_region: npt.NDArray[np.int32]
    target_region: npt.NDArray[np.int32]

    @staticmethod
    def repeated(source: RankCoordinates, places: LayerPlaces, runs: Runs) -> Rows:
        """Every run at every place. Runs are merged, the first one begins at its place in the source, none before it on
        either side, and places rise in the source; see ``in_layers``.
        """
        rows = object.__new__(Rows)
        rows.__dict__.update(source=source, _repeats=(places, runs))
        return rows

    @property
    def repeats(self) -> tuple[LayerPlaces, Runs] | None:
        """The places and the runs, if the rows are every run at every place; columns are made when somebody looks at
        them.
        """
        return self.__dict__.get("_repeats")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if self.repeats is None or name not in _COLUMNS:
                raise AttributeError(f"Rows has no {name}")
            self.__dict__.update(zip(_COLUMNS, _columns(*self.repeats), strict=True))
            return self.__dict__[name]

    def __len__(self) -> int:
        if self.repeats is None:
            return len(self.nbytes)
        places, runs = self.repeats
        return len(places.source) * len(runs.source)

    def __repr__(self) -> str:
        return f"Rows(from {self.source}: {len(self)} rows, {self.total_bytes} bytes)"

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows together."""
        if self.repeats is None:
            return int(self.nbytes.sum())
        places, runs = self.repeats
        return len(places.source) * int(runs.nbytes.sum())


def in_layers(source: RankCoordinates, places: LayerPlaces, runs: Runs) -> Rows:
    """The runs at the places of all layers, these by rising source address: their rows then often rise as they are."""
    if len(places.source) * len(runs.source) < FEW_ROWS:
        return Rows(source, *_columns(places, runs))
    least_source, least_target = int(runs.source.min()), int(runs.target.min())
    # numpy adds negative numbers to addresses as it adds their 64-bit complements
    moved = places._replace(
        source=places.source + np.int64(least_source).astype(np.uint64),
        target=places.target + np.int64(least_target).astype(np.uint64),
    )
    return Rows.repeated(source, moved, runs.moved(-least_source, -least_target))


def coalesced(parts: Sequence[Rows]) -> Rows:
    """All rows from one source, by rising source address, joined across arrays and layers where both sides continue in
    one region.
    """
    rows = parts[0] if len(parts) == 1 else _alike(parts) or _concatenated(parts)
    if rows.repeats is not None and _stay_apart(*rows.repeats):
        return rows
    if (rows.source_address[:-1] > rows.source_address[1:]).any():
        rows = _taken(rows, np.argsort(rows.source_address, kind="stable"))
    source, target, nbytes = rows.source_address, rows.target_address, rows.nbytes
    continues = source[:-1] + nbytes[:-1] == source[1:]
    continues &= target[:-1] + nbytes[:-1] == target[1:]
    if not continues.any():
        return rows
    continues &= rows.source_region[:-1] == rows.source_region[1:]
    continues &= rows.target_region[:-1] == rows.target_region[1:]
    starts = np.flatnonzero(np.concatenate(([True], ~continues)))
    return replace(_taken(rows, starts), nbytes=np.add.reduceat(nbytes, starts))


_COLUMNS = ("source_address", "target_address", "nbytes", "source_region", "target_region")


def _columns(places: LayerPlaces, runs: Runs) -> tuple[npt.NDArray[Any], ...]:
    """Those of rows that are every run at every place."""
    count = len(runs.source)
    return (
        (places.source[:, None] + runs.source.astype(np.uint64)).ravel(),
        (places.target[:, None] + runs.target.astype(np.uint64)).ravel(),
        runs.nbytes.astype(np.uint64)[None].repeat(len(places.source), axis=0).ravel(),
        places.source_region.repeat(count),
        places.target_region.repeat(count),
    )


def _alike(parts: Sequence[Rows]) -> Rows | None:
    """The rows of parts that repeat the same runs, as K and V in regions of their own do; None if they do not."""
    repeats = [part.repeats for part in parts if part.repeats is not None]
    runs = repeats[0][1] if repeats else None
    if runs is None or len(repeats) < len(parts):
        return None
    if not all(
        np.array_equal(mine, other) for _, others in repeats[1:] for mine, other in zip(runs, others, strict=True)
    ):
        return None
    places = [np.concatenate(columns) for columns in zip(*(places for places, _ in repeats), strict=True)]
    order = np.argsort(places[0], kind="stable")
    return Rows.repeated(parts[0].source, LayerPlaces(*(column[order] for column in places)), runs)


def _concatenated(parts: Sequence[Rows]) -> Rows:
    return Rows(
        parts[0].source,
        np.concatenate([part.source_address for part in parts]),
        np.concatenate([part.target_address for part in parts]),
        np.concatenate([part.nbytes for part in parts]),
        np.concatenate([part.source_region for part in parts]),
        np.concatenate([part.target_region for part in parts]),
    )


def _stay_apart(places: LayerPlaces, runs: Runs) -> bool:
    """Whether merged runs that are repeated rise from place to place, and none continues in the next place."""
    if len(places.source) < 2 or not len(runs.source):
        return True
    source, target, nbytes = (column.astype(np.uint64) for column in runs)
    last_source, last_target = places.source[:-1] + source[-1], places.target[:-1] + target[-1]
    next_source, next_target = places.source[1:], places.target[1:] + target[0]
    continues = (last_source + nbytes[-1] == next_source) & (last_target + nbytes[-1] == next_target)
    return bool((last_source < next_source).all()) and not continues.any()


def _taken(rows: Rows, chosen: npt.NDArray[np.intp]) -> Rows:
    """Some of the rows, in that order."""
    return Rows(
        rows.source, rows.source_address[chosen], rows.target_address[chosen], rows.nbytes[chosen],
        rows.source_region[chosen], rows.target_region[chosen],
    )  # fmt: skip
