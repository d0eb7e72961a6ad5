"""Whether the ranks of an engine hold its whole model between them.

A layout that lacks a head, a layer or a share of the tokens would be filled without complaint, and its engine would
answer from memory that nobody wrote. So every array of the model is compared with the boxes and shares of all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np

from kvweave.core.array import CacheArray
from kvweave.core.interval import Box, Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.tokens import TokenShare

_Held = frozenset[tuple[Box, TokenShare | None]]


def unheld(layout: EngineLayout) -> Iterator[tuple[str, CacheArray, Box]]:
    """Layer, array and box of what the model caches and no rank holds; the first box of each kind of array."""
    holders: dict[tuple[str, str], set[tuple[Box, TokenShare | None]]] = defaultdict(set)
    shards = (shard for rank in layout.ranks for shard in rank.shards)
    for part, layers, box, tokens in {(s.array.part, s.layers, s.box, s.tokens) for s in shards}:
        for name in layers:
            holders[name, part].add((box, tokens))
    seen: set[tuple[CacheArray, _Held]] = set()
    for layer in layout.model.layers():
        for array in layer.spec.arrays():
            held = frozenset(holders[layer.name, array.part])
            if (array, held) not in seen:
                seen.add((array, held))
                gap = _gap_in_shares(array, held)
                if gap is not None:
                    yield layer.name, array, gap


def _gap_in_shares(array: CacheArray, held: _Held) -> Box | None:
    """What some share of the tokens lacks; boxes with all tokens count for every share."""
    count = max((share.count for _, share in held if share is not None), default=1)
    for index in range(count):
        gap = _gap(array, {box for box, share in held if share is None or share.count == 1 or share.index == index})
        if gap is not None:
            return gap
    return None


def _gap(array: CacheArray, boxes: Collection[Box]) -> Box | None:
    """A box of the array that lies in none of these boxes."""
    edges = [
        sorted({0, axis.size} | {edge for box in boxes for edge in (box[number].start, box[number].stop)})
        for number, axis in enumerate(array.axes)
    ]
    covered = np.zeros([len(ends) - 1 for ends in edges], dtype=np.bool_)
    for box in boxes:
        cells = (slice(ends.index(i.start), ends.index(i.stop)) for ends, i in zip(edges, box, strict=True))
        covered[tuple(cells)] = True
    if covered.all():
        return None
    first = np.argwhere(~covered)[0]
    return tuple(Interval(*list(pairwise(ends))[number]) for ends, number in zip(edges, first, strict=True))
