"""How a box falls into runs of bytes that are contiguous on both sides.

Each axis is a dimension (extent, source stride, target stride). Axes whose two strides equal the run below them join
it; what does not join is stepped over. Runs that continue on both sides are merged, also those of several boxes: K and
V side by side in one row are one run::

    head [0,2)  dim [0,64)  2 bytes                source strides       target strides
    HND -> HND, 16 entries a block                 2048, 2              2048, 2          run 128
    HND -> NHD                                     2048, 2               128, 2          run 128
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.layout import Geometry
from kvweave.errors import PlanError

MOST_RUNS = 2**17
"""Of one entry of one box. Real ones have some ten thousands at most: conv states of 8,192 channels in other orders."""

Offsets = npt.NDArray[np.int64]

MOST_KERNEL_BLOCK_RUNS = 4096
"""A kernel block that falls into more is taken entry by entry; so many runs are kept for each pair of geometries."""

_Dimension = tuple[int, int, int]


class Runs(NamedTuple):
    """Run n copies ``nbytes[n]`` bytes from byte offset ``source[n]`` to byte offset ``target[n]``."""

    source: Offsets
    target: Offsets
    nbytes: Offsets

    def moved(self, source: int, target: int) -> Runs:
        """The same runs, that many bytes further on either side."""
        return Runs(self.source + source, self.target + target, self.nbytes)

    def merged(self) -> Runs:
        """By rising source offset, neighbours joined that continue on both sides."""
        source, target, nbytes = self
        if (source[:-1] > source[1:]).any():
            order = np.argsort(source, kind="stable")
            source, target, nbytes = source[order], target[order], nbytes[order]
        continues = source[:-1] + nbytes[:-1] == source[1:]
        continues &= target[:-1] + nbytes[:-1] == target[1:]
        if not continues.any():
            return Runs(source, target, nbytes)
        starts = np.flatnonzero(np.concatenate(([True], ~continues)))
        return Runs(source[starts], target[starts], np.add.reduceat(nbytes, starts))

    def joins(self, source: Geometry, target: Geometry) -> bool:
        """Whether one entry's runs continue in those of the next entry of the block."""
        return source.entry_stride == target.entry_stride and bool((self.nbytes == source.entry_stride).all())


def joined(parts: Sequence[Runs]) -> Runs:
    """The runs of all parts, merged."""
    return parts[0] if len(parts) == 1 else Runs(*map(np.concatenate, zip(*parts, strict=True))).merged()


@lru_cache(maxsize=128)
def entry_runs(extents: tuple[int, ...], item_bytes: int, source: Geometry, target: Geometry) -> Runs:
    """The runs of one entry of a box with these extents, between two geometries.

    Raises ``PlanError`` for more than ``MOST_RUNS``, which only memory of a senseless order has.
    """
    run, outer = _outer(extents, item_bytes, source.axis_strides, target.axis_strides)
    pieces = _count(outer)
    if pieces > MOST_RUNS:
        raise PlanError(
            f"strides: one entry over {extents} falls into {pieces} pieces between two memory orders, at most "
            f"{MOST_RUNS} are moved; keep axes of both sides in a like order"
        )
    return _step(run, outer)


@lru_cache(maxsize=512)
def kernel_block_runs(extents: tuple[int, ...], item_bytes: int, source: Geometry, target: Geometry) -> Runs | None:
    """The same of all entries of a kernel block; None where the two sides' differ in size, or it is in many pieces."""
    entries = source.kernel_block_entries
    if entries != target.kernel_block_entries:
        return None
    strides = [(geometry.entry_stride, *geometry.axis_strides) for geometry in (source, target)]
    run, outer = _outer((entries, *extents), item_bytes, *strides)
    if _count(outer) > MOST_KERNEL_BLOCK_RUNS:
        return None
    return _step(run, outer)


def _outer(
    extents: tuple[int, ...], item_bytes: int, source_strides: tuple[int, ...], target_strides: tuple[int, ...]
) -> tuple[int, list[_Dimension]]:
    """Bytes in one run, and the dimensions (strides of either side, extent) that it is repeated along."""
    dimensions = sorted(
        (source_stride, target_stride, extent)
        for extent, source_stride, target_stride in zip(extents, source_strides, target_strides, strict=True)
        if extent > 1
    )
    run = item_bytes
    while dimensions and dimensions[0][0] == dimensions[0][1] == run:
        run *= dimensions.pop(0)[2]
    return run, dimensions


def _count(outer: Sequence[_Dimension]) -> int:
    return prod(extent for *_, extent in outer)


def _step(run: int, outer: Sequence[_Dimension]) -> Runs:
    source_offsets = target_offsets = np.zeros(1, dtype=np.int64)
    for source_stride, target_stride, extent in outer:
        steps = np.arange(extent, dtype=np.int64)[:, None]
        source_offsets = (steps * source_stride + source_offsets).ravel()
        target_offsets = (steps * target_stride + target_offsets).ravel()
    return Runs(source_offsets, target_offsets, np.full(len(source_offsets), run, dtype=np.int64))
