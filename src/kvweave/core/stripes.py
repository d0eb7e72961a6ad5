"""Stripes: the parts into which a request's tokens are cut, so that several equal sources serve it at once.

Part k of n is served by turn ``salt + k`` of the rotation over the replicas. The edges lie where the target's memory
breaks, and follow from the target's blocks alone: whichever source serves a part, parts neither overlap nor leave
anything out, and no row is cut. Parts of whole blocks differ by at most one block::

    tokens 0 to 100, target blocks of 16, 4 stripes      [0, 32)  [32, 64)  [64, 80)  [80, 100)
    blocks                                               2        2         1         1, and one of 4 tokens

What has no tokens (a state) belongs to the first stripe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kvweave.core.interval import Interval
from kvweave.core.replicas import Salt, salt_number
from kvweave.core.whole import require_whole
from kvweave.errors import PlanError


@dataclass(frozen=True, slots=True)
class Stripe:
    """Part ``number`` of ``count`` of a request, from the sources of one ``turn`` of the rotation."""

    turn: int
    number: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.turn < 0 or not 0 <= self.number < self.count:
            raise PlanError(f"stripe: part {self.number} of {self.count} at turn {self.turn}; count both from 0")

    def at(self, turn: int) -> Stripe:
        """The same part, from the sources of another turn."""
        return replace(self, turn=turn)


def stripes_of(salt: Salt, count: int) -> Iterator[Stripe]:
    """A whole request in ``count`` stripes, from ``salt`` on.

    >>> [(stripe.turn, stripe.number) for stripe in stripes_of(5, 3)]
    [(5, 0), (6, 1), (7, 2)]
    """
    first = salt_number(salt)
    return (Stripe(first + number, number, count) for number in range(count))


def checked_stripes(salt: Salt, stripes: int | Sequence[Stripe], most: int) -> tuple[Stripe, ...]:
    """The stripes of a request that is asked for as a number of them, or as some parts.

    A number above ``most``, the sources of the read that has most of them, would serve nobody and counts as that.
    """
    if isinstance(stripes, Sequence):
        if len({stripe.count for stripe in stripes}) > 1 or len({stripe.number for stripe in stripes}) < len(stripes):
            raise PlanError(f"stripes: {list(stripes)}; name each part once, all of one request cut in as many")
        return tuple(stripes)
    require_whole("descriptors", 1, error=PlanError, stripes=stripes)
    return tuple(stripes_of(salt, min(int(stripes), most)))


def stripe_edges(wanted: Interval, block: int, count: int) -> npt.NDArray[np.int64]:
    """Where each of ``count`` stripes of ``wanted`` begins, and at last where it ends, cut between blocks of ``block``.

    >>> stripe_edges(Interval(0, 100), 16, 4).tolist(), stripe_edges(Interval(3, 10), 16, 2).tolist()
    ([0, 32, 64, 80, 100], [3, 10, 10])
    """
    first, last = -(-wanted.start // block), wanted.stop // block
    if last < first:
        return np.array([wanted.start, *[wanted.stop] * count], dtype=np.int64)
    partial = np.zeros(count)
    partial[0] += first * block - wanted.start
    partial[-1] += wanted.stop - last * block
    blocks = np.full(count, (last - first) // count, dtype=np.int64)
    blocks[np.argsort(partial, kind="stable")[: (last - first) % count]] += 1
    inner = (first + np.cumsum(blocks)[:-1]) * block
    return np.concatenate(([wanted.start], inner, [wanted.stop])).astype(np.int64)
