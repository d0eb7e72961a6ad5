"""Reads that move as one: of the same layers, from one source, at equal distances in every layer and on both sides.

K and V of one row are two reads, a conv state is three; their bytes lie beside each other. Merged inside one entry,
before an entry stands for many tokens and many layers, they cost what one read costs::

    k   layer 0 at 4096, layer 1 at 69632        v   layer 0 at 4352, layer 1 at 69888        256 bytes apart in both
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvweave.core.read import Read, ReadEnd
from kvweave.core.replicas import Salt, choose, salt_number
from kvweave.core.runs import Runs, joined

MOST_KEPT = 64
"""Choices of replicas that are kept; more than 64 ranks with the same bytes are read in turn all the same."""


class LayerPlaces(NamedTuple):
    """Where the layers of a bundle begin on both sides, and in which regions, by rising source address."""

    source: npt.NDArray[np.uint64]
    target: npt.NDArray[np.uint64]
    source_region: npt.NDArray[np.int32]
    target_region: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Bundle:
    """``runs`` are those of one entry of all its reads, from the addresses of the first one, ``read``.

    ``block_runs`` are those of a whole kernel block, where that is as large on both sides and takes fewer runs than its
    entries do.
    """

    read: Read
    source: ReadEnd
    runs: Runs
    block_runs: Runs | None

    @cached_property
    def layers(self) -> LayerPlaces:
        """The places of the layers."""
        source, target = self.source, self.read.target
        order = np.argsort(source.addresses, kind="stable")
        return LayerPlaces(
            source.addresses[order], target.addresses[order], source.regions[order], target.regions[order]
        )

    @cached_property
    def entries_join(self) -> bool:
        """Whether an entry continues in the next one of its block, on both sides."""
        return self.runs.joins(self.source.geometry, self.read.target.geometry)


class BundleBook:
    """The bundles of one target rank, made once for each choice of replicas: salts of equal choice share them."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        self._period = lcm(*{len(read.sources) for read in reads})
        self._bundles: dict[int, tuple[Bundle, ...]] = {}
        self.most_sources = max((len(read.sources) for read in reads), default=1)

    def of(self, salt: Salt) -> tuple[Bundle, ...]:
        """The bundles of a request of that salt."""
        turn = salt_number(salt) % self._period
        if turn not in self._bundles:
            if len(self._bundles) >= MOST_KEPT:
                self._bundles.clear()
            self._bundles[turn] = tuple(bundle_reads(self._reads, turn))
        return self._bundles[turn]


def bundle_reads(reads: Iterable[Read], salt: Salt) -> Iterator[Bundle]:
    """The reads of one target rank in bundles, each from the source that serves a request of that salt."""
    alike: dict[object, list[tuple[Read, ReadEnd]]] = defaultdict(list)
    for read in reads:
        source = choose(read, salt)
        ends = (source.placement, source.spacing, read.target.placement, read.target.spacing)
        alike[source.coordinates, read.layers, read.array.tokens, ends].append((read, source))
    for members in alike.values():
        yield _bundle(members)


def _bundle(members: Sequence[tuple[Read, ReadEnd]]) -> Bundle:
    read, source = members[0]
    runs = joined([_moved(member.runs(end), *members[0], member, end) for member, end in members])
    by_entry = len(runs.nbytes) * (1 if runs.joins(source.geometry, read.target.geometry) else _entries(read))
    block_runs = _block_runs(members)
    return Bundle(read, source, runs, block_runs if block_runs and len(block_runs.nbytes) < by_entry else None)


def _block_runs(members: Sequence[tuple[Read, ReadEnd]]) -> Runs | None:
    parts = []
    for member, end in members:
        runs = member.kernel_block_runs(end)
        if runs is None:
            return None
        parts.append(_moved(runs, *members[0], member, end))
    return joined(parts)


def _entries(read: Read) -> int:
    return read.target.geometry.kernel_block_entries


def _moved(runs: Runs, read: Read, source: ReadEnd, other: Read, other_source: ReadEnd) -> Runs:
    """The runs of ``other``, from the addresses of ``read``."""
    return runs.moved(
        _distance(source.addresses, other_source.addresses), _distance(read.target.addresses, other.target.addresses)
    )


def _distance(addresses: np.ndarray, others: np.ndarray) -> int:
    return int(others[0]) - int(addresses[0])
