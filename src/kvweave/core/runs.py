"""How a box falls into runs of bytes that are contiguous on both sides.

Each axis is a dimension (extent, source stride, target stride). Axes whose two strides equal the run below them join
it; what does not join is stepped over. Whether neighbouring entries join too depends on both entry strides::

    head [0,2)  dim [0,64)  2 bytes                source strides       target strides
    HND -> HND, 16 entries a block                 2048, 2              2048, 2          run 128, entries join
    HND -> NHD                                     2048, 2               128, 2          run 128, entries apart
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvweave.core.layout import Geometry


@dataclass(frozen=True, eq=False)
class RunShape:
    """One entry's runs: ``run_bytes`` each, at these offsets; ``entries_join`` if the next entry continues the run."""

    run_bytes: int
    source_offsets: npt.NDArray[np.int64]
    target_offsets: npt.NDArray[np.int64]
    entries_join: bool


@lru_cache(maxsize=4096)
def run_shape(extents: tuple[int, ...], item_bytes: int, source: Geometry, target: Geometry) -> RunShape:
    """The runs of one entry of a box with these extents, between two geometries."""
    dimensions = sorted(
        (source_stride, target_stride, extent)
        for extent, source_stride, target_stride in zip(extents, source.axis_strides, target.axis_strides, strict=True)
        if extent > 1
    )
    run = item_bytes
    while dimensions and dimensions[0][0] == dimensions[0][1] == run:
        run *= dimensions.pop(0)[2]
    source_offsets = target_offsets = np.zeros(1, dtype=np.int64)
    for source_stride, target_stride, extent in dimensions:
        steps = np.arange(extent, dtype=np.int64)[:, None]
        source_offsets = (steps * source_stride + source_offsets).ravel()
        target_offsets = (steps * target_stride + target_offsets).ravel()
    return RunShape(run, source_offsets, target_offsets, source.entry_stride == target.entry_stride == run)
