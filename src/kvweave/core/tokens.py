"""The token axis: which entries a rank holds under decode context parallelism, and where one entry lies.

With dcp the entries are dealt out in turns of ``interleave``: entry e is on dcp rank ``(e // i) % dcp``, at local
position ``(e // (i*dcp)) * i + e % i``::

    dcp 2, i 2      entry  0 1 2 3 4 5 6 7
                    rank   0 0 1 1 0 0 1 1
                    local  0 1 0 1 2 3 2 3

Source: vLLM's ``cp_kv_cache_interleave_size`` and its slot mapping. Arrays that dcp leaves alone have one share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from kvweave.core.interval import Interval
from kvweave.core.whole import require_whole
from kvweave.errors import LayoutError

_MOST_TURNS = 2**16

Entries = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenShare:
    """The entries e with ``(e // interleave) % count == index``."""

    count: int = 1
    index: int = 0
    interleave: int = 1

    def __post_init__(self) -> None:
        sizes = {"count": self.count, "index": self.index, "interleave": self.interleave}
        require_whole("token share", None, error=LayoutError, **sizes)
        if self.count < 1 or self.interleave < 1 or not 0 <= self.index < self.count:
            raise LayoutError(f"token share: index {self.index} of count {self.count}, interleave {self.interleave}")

    def holds(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Which of these entries this share has."""
        held: npt.NDArray[np.bool_] = entries // self.interleave % self.count == self.index
        return held

    def local(self, entries: Entries) -> Entries:
        """The local positions of entries that this share holds."""
        if self.count == 1:
            return entries
        return entries // (self.interleave * self.count) * self.interleave + entries % self.interleave

    def num_local(self, num_entries: int) -> int:
        """How many local positions the first ``num_entries`` entries reach into this share.

        >>> [TokenShare(4, index).num_local(13) for index in range(4)]
        [4, 3, 3, 3]
        """
        turns, rest = divmod(num_entries, self.interleave * self.count)
        return turns * self.interleave + min(max(rest - self.index * self.interleave, 0), self.interleave)

    def stretch(self, block_entries: int) -> int:
        """A length g such that memory is contiguous between neighbouring multiples of g, for blocks of that many."""
        return block_entries if self.count == 1 else gcd(self.interleave, block_entries)


def turns(shares: Collection[TokenShare]) -> tuple[Entries, Entries, int]:
    """The entries until all these deals begin anew, cut where any of them changes hands, and how many these are.

    Raises ``LayoutError`` where that takes longer than anybody's blocks would make it.
    """
    period = lcm(*(share.count * share.interleave for share in shares if share.count > 1))
    steps = {share.interleave for share in shares if share.count > 1} or {1}
    if period // min(steps) > _MOST_TURNS:
        stated = ", ".join(sorted({f"{share.count} ranks with interleave {share.interleave}" for share in shares}))
        raise LayoutError(
            f"interleave: the deals of {stated} meet again after {period} entries only; "
            "choose interleaves of which one divides the other"
        )
    return *segments(Interval(0, period), steps), period


def shared_runs(one: TokenShare, other: TokenShare) -> tuple[tuple[Interval, ...], int]:
    """The entries that two shares have in common: runs inside one period, and the period.

    >>> shared_runs(TokenShare(4, 1), TokenShare(2, 1))
    ((Interval(start=1, stop=2),), 4)
    """
    first, lengths, period = turns((one, other))
    held = one.holds(first) & other.holds(first)
    first, end = first[held], (first + lengths)[held]
    alone = first[1:] != end[:-1]
    starts, stops = first[np.append(True, alone)[: len(first)]], end[np.append(alone, True)[: len(first)]]
    return tuple(Interval(int(start), int(stop)) for start, stop in zip(starts, stops, strict=True)), period


def segments(wanted: Interval, steps: Iterable[int]) -> tuple[Entries, Entries]:
    """``wanted`` cut at every multiple of each step: first entries and lengths, in order; none of an empty one.

    >>> [part.tolist() for part in segments(Interval(10, 40), (16, 24))]
    [[10, 16, 24, 32], [6, 8, 8, 8]]
    """
    if not wanted:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    cuts = [np.arange(wanted.start // step * step + step, wanted.stop, step, dtype=np.int64) for step in set(steps)]
    inner = cuts[0] if len(cuts) == 1 else np.unique(np.concatenate(cuts))
    edges = np.empty(len(inner) + 2, dtype=np.int64)
    edges[0], edges[1:-1], edges[-1] = wanted.start, inner, wanted.stop
    return edges[:-1], edges[1:] - edges[:-1]
