"""One read of a plan: a box of one kind of array, for some layers, from any one of several equal sources to a target.

Both ends are kept ready for arithmetic: the address of the box's first element in block 0, layer by layer, and the
strides. What depends on a request (block tables, tokens, replica) enters in ``descriptors.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kvweave.core.array import CacheArray
from kvweave.core.interval import Box
from kvweave.core.layout import Geometry, Place, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.runs import Runs, entry_runs, kernel_block_runs
from kvweave.core.tokens import TokenShare


@dataclass(frozen=True, eq=False)
class ReadEnd:
    """One side of a read: a rank, its block table's name, strides, and where each layer's box begins."""

    coordinates: RankCoordinates
    group: str
    geometry: Geometry
    num_blocks: int
    scratch_blocks: int
    tokens: TokenShare | None
    regions: npt.NDArray[np.int32]
    addresses: npt.NDArray[np.uint64]

    @staticmethod
    def of(rank: RankLayout, shard: Shard, box: Box, places: Sequence[Place]) -> ReadEnd:
        """The end of ``rank`` for ``box`` inside ``shard``, for the layers of ``places`` in that order."""
        inside = sum(
            (part.start - held.start) * stride
            for part, held, stride in zip(box, shard.box, shard.geometry.axis_strides, strict=True)
        )
        addresses = [rank.regions[place.region].address + place.offset + inside for place in places]
        return ReadEnd(
            rank.coordinates, shard.group, shard.geometry, shard.num_blocks, shard.scratch_blocks, shard.tokens,
            np.array([place.region for place in places], dtype=np.int32), np.array(addresses, dtype=np.uint64),
        )  # fmt: skip

    @cached_property
    def placement(self) -> tuple[object, ...]:
        """Everything that says in which block and where in it an entry lies, the block table included."""
        return self.group, self.num_blocks, self.scratch_blocks, self.tokens, replace(self.geometry, axis_strides=())

    @cached_property
    def spacing(self) -> tuple[bytes, bytes]:
        """How far the layers lie apart, and in which regions; ends of equal spacing keep their distance."""
        return np.diff(self.addresses).tobytes(), self.regions.tobytes()


@dataclass(frozen=True, eq=False)
class Read:
    """``box`` of ``array`` for ``layers``, from any one of ``sources`` (they hold equal bytes) to ``target``.

    ``ordinal`` of ``siblings``: which of the target ranks that want the same box this one is; it spreads them over
    the replicas.
    """

    array: CacheArray
    box: Box
    layers: tuple[str, ...]
    sources: tuple[ReadEnd, ...]
    target: ReadEnd
    ordinal: int
    siblings: int

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """The box's size per axis."""
        return tuple(len(interval) for interval in self.box)

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry of the box in one layer; of the whole state where there is no token axis."""
        return int(np.prod(self.extents, dtype=np.int64)) * self.array.dtype.nbytes

    def runs(self, source: ReadEnd) -> Runs:
        """How the bytes of one entry fall into runs that are contiguous on both sides."""
        return entry_runs(self.extents, self.array.dtype.nbytes, source.geometry, self.target.geometry)

    def kernel_block_runs(self, source: ReadEnd) -> Runs | None:
        """The same of a whole kernel block; None where the two sides' differ, or it falls into too many pieces."""
        return kernel_block_runs(self.extents, self.array.dtype.nbytes, source.geometry, self.target.geometry)
