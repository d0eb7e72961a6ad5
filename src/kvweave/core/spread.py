"""How a request is spread over the replicas: in how many stripes, and at which turn of their rotation it begins.

A large request is striped over as many replicas as there are, while each stripe has ``STRIPE_BYTES``. Where fewer serve
than there are, those turns do whose sources have the least bytes in flight for this rank now. Of equal ones the
request's salt decides, so that ranks and engines that choose at the same time differ::

    four replicas        tp0      tp1      tp2      tp3
    in flight            3 MB     0        1 MB     0          salt 2
    64 KB                                           reads      the first of the least loaded, from tp2 on
    5 MB                                   stripe   stripe     two neighbours with the least together
    40 MB                stripe   stripe   stripe   stripe     all, from tp2 on

Ranks of one engine that want the same bytes share the replicas: of eight, two ranks use four each, and where there are
as many ranks as replicas, each rank reads from one.

Bytes are estimated from tokens: which of a window's blocks are null already is not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from kvweave.core.array import TokenAxis
from kvweave.core.parallel import RankCoordinates
from kvweave.core.read import Read
from kvweave.core.replicas import Salt, replica_position, salt_number
from kvweave.core.stripes import Stripe, stripes_of
from kvweave.core.token_run import read_runs

STRIPE_BYTES = 2 << 20
"""The least bytes of one stripe, of all its sources together. One more stripe costs about 0.13 ms here, in which a link
of 10 GB/s moves 1.3 MB and one of 25 GB/s 3 MB."""

MOST_TURNS = 64
"""Turns that are compared, and stripes of one request; more than 64 ranks with the same bytes are used in turn."""

Loads = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Replicas:
    """Reads that move over the same sources together: who serves turn 0, and the bytes of one entry of each kind."""

    sources: tuple[RankCoordinates, ...]
    position: int
    siblings: int
    entry_bytes: Mapping[TokenAxis | None, float]

    @property
    def most_stripes(self) -> int:
        """How many sources one target should use, so that it and its siblings use all of them alike."""
        count = len(self.sources)
        if self.siblings % count == 0:
            return 1
        return count // self.siblings if count % self.siblings == 0 else count

    def nbytes(self, start_token: int, num_tokens: int) -> float:
        """About how many bytes of a request these reads move."""
        return sum(size * _entries(kind, start_token, num_tokens) for kind, size in self.entry_bytes.items())

    def loads(self, salt: int, turns: int, stripes: int, in_flight: Mapping[RankCoordinates, int]) -> Loads:
        """For each of so many turns from ``salt`` on, what the sources of its stripes have in flight together."""
        each = np.array([in_flight.get(source, 0) for source in self.sources], dtype=np.int64)
        positions = (self.position + salt % len(each) + np.arange(turns + stripes - 1)) % len(each)
        sums = np.concatenate(([0], np.cumsum(each[positions])))
        loads: Loads = sums[stripes:] - sums[:-stripes]
        return loads


class Spread:
    """How the requests of one target rank are spread over the sources of its reads."""

    def __init__(self, reads: Iterable[Read]) -> None:
        self._replicas = tuple(_alike(read for read in reads if len(read.sources) > 1))
        self._most = min(max((one.most_stripes for one in self._replicas), default=1), MOST_TURNS)
        self._turns = min(lcm(*(len(one.sources) for one in self._replicas)), MOST_TURNS)

    def stripes(
        self, salt: Salt, start_token: int, num_tokens: int, in_flight: Mapping[RankCoordinates, int]
    ) -> tuple[Stripe, ...]:
        """The stripes of a request of ``num_tokens`` tokens, of which the target has ``start_token`` already.

        ``in_flight`` says how many bytes this rank is reading from each source now; none where it says nothing.
        """
        first = salt_number(salt)
        nbytes = [one.nbytes(start_token, num_tokens) for one in self._replicas]
        count = max(1, min(self._most, int(sum(nbytes) // STRIPE_BYTES)))
        if in_flight and nbytes:
            loads = sum(
                weight * one.loads(first, self._turns, count, in_flight)
                for one, weight in zip(self._replicas, nbytes, strict=True)
            )
            first += int(np.argmin(loads))
        return tuple(stripes_of(first, count))


def _alike(reads: Iterable[Read]) -> Iterator[_Replicas]:
    sizes: dict[tuple[tuple[RankCoordinates, ...], int, int], dict[TokenAxis | None, float]] = defaultdict(dict)
    for read in reads:
        sources = tuple(source.coordinates for source in read.sources)
        position = replica_position(read.ordinal, read.siblings, len(sources))
        kinds, kind = sizes[sources, position, read.siblings], read.array.tokens
        share = 1.0 if kind is None else sum(run.share for run in read_runs(read))
        kinds[kind] = kinds.get(kind, 0.0) + share * read.entry_bytes * len(read.layers)
    return (_Replicas(*key, kinds) for key, kinds in sizes.items())


def _entries(kind: TokenAxis | None, start_token: int, num_tokens: int) -> int:
    """Entries that a request needs; one of what has no tokens."""
    if kind is None:
        return 1
    first = max(start_token, kind.reach.first_needed(num_tokens))
    return max(0, num_tokens // kind.tokens_per_entry - first // kind.tokens_per_entry)
