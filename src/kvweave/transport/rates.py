"""What reading costs, direct and staged.

Each way costs so many seconds to start, for a piece, and for a byte. Direct reading is measured when a peer is
connected, by reading from its memory; gathering and scattering once per process, in main memory of its own. On a
source, gathering overlaps with what the reader does, so the slower side counts. The shortest time of several counts,
and what a busy machine shows all the same is bounded by what any machine could do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from kvweave.transport.agent_data import RingPlace
from kvweave.transport.copying import MOST_STROKE_BYTES, MOST_STROKE_ROWS
from kvweave.transport.landing import chunk_bytes
from kvweave.transport.pieces import ByteArray, Pieces
from kvweave.transport.regions import MEMORY_KINDS, RegionTable
from kvweave.transport.rows import ReadRows, single
from kvweave.transport.staging_ring import slot_offset

STAGING = ("auto", "never", "always")
"""Which reads are staged: those for which it takes less time (where nothing else is said), none, all."""
STAGED_START_SECONDS = 0.005
"""Until the source gathers: first its engine must hear of the claim, and then its process must get its turn."""
MOST_START_SECONDS = 0.001
MOST_PIECE_SECONDS = 20e-6
LEAST_BYTE_SECONDS, MOST_BYTE_SECONDS = 1 / 100e9, 1 / 0.1e9
CHUNK_SECONDS = 50e-6
"""What a chunk costs the reader besides: its message, the status, finding its place."""
HELP = 0.6
"""What one more thread adds to the speed of copying: on two cores, 1.5 to 1.7 times that of one."""
_REPEATS = 5
_PIECES, _PIECE_BYTES = 64, 4096
_LARGE_BYTES = 1 << 20
_SCRATCH_BYTES = 4 << 20
_TOUCH = 3
"""The number of trials that do not count."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: to start, for each piece, for each byte."""

    start: float
    piece: float
    byte: float

    def bounded(self) -> Cost:
        """The same, as far as a machine can be so fast or slow."""
        return Cost(
            min(self.start, MOST_START_SECONDS),
            min(self.piece, MOST_PIECE_SECONDS),
            min(max(self.byte, LEAST_BYTE_SECONDS), MOST_BYTE_SECONDS),
        )

    def seconds(self, pieces: int, nbytes: int) -> float:
        """What so many pieces with so many bytes in all take."""
        return self.start + pieces * self.piece + nbytes * self.byte


@dataclass(frozen=True, slots=True)
class Rates:
    """Both ways of reading from one source, whose slots are so large; ``helpers`` are threads that share in copying
    what is read directly.
    """

    direct: Cost
    staged: Cost
    slot_bytes: int
    helpers: int = 0

    @staticmethod
    def of(
        direct: Cost, gathering: Cost, scattering: Cost, slot_bytes: int, mapped: bool = False, helpers: int = 0
    ) -> Rates:
        """From what its parts cost; slots that are ``mapped`` need not be read."""
        reading = 0.0 if mapped else direct.byte
        staged = Cost(
            STAGED_START_SECONDS,
            max(gathering.piece, scattering.piece),
            max(gathering.byte, reading + scattering.byte),
        )
        return Rates(direct, staged, slot_bytes, helpers)

    def direct_seconds(self, rows: ReadRows) -> float:
        """How long reading these rows one by one takes."""
        nbytes = rows.total_bytes
        strokes = max(nbytes / MOST_STROKE_BYTES, len(rows) / MOST_STROKE_ROWS)
        helping = min(self.helpers, max(0.0, strokes - 1))
        return self.direct.seconds(len(rows), nbytes) / (1 + HELP * helping)

    def staged_seconds(self, rows: ReadRows) -> float:
        """How long it takes when the source gathers them."""
        nbytes = rows.total_bytes
        chunks = nbytes / chunk_bytes(nbytes, self.slot_bytes)
        return self.staged.seconds(len(rows), nbytes) + chunks * CHUNK_SECONDS


class Trials:
    """Reads from a peer's memory that show what direct reading costs; ``landing`` is registered, a slot long.

    They read the peer's largest region, each a different part of it, as requests will: what was read before lies in a
    cache. Where pieces begin and end is touched before they count, because a machine may take a hundred times as long
    over the first touch of a page, and a pool of blocks was touched. Nobody looks at the bytes. A peer with small
    regions is read from its ring.
    """

    def __init__(self, regions: RegionTable, place: RingPlace, landing: ByteArray) -> None:
        first, nbytes = _largest(regions)
        if nbytes < _LARGE_BYTES:
            first, nbytes = place.address + slot_offset(place, 0), place.num_slots * place.slot_bytes
        self._nbytes = min(_LARGE_BYTES, nbytes, landing.nbytes)
        self._piece_bytes = max(1, min(_PIECE_BYTES, self._nbytes // _PIECES))
        self._seconds = [float("inf")] * (1 + _TOUCH)
        target = landing.ctypes.data
        numbers = np.arange(_PIECES, dtype=np.uint64)
        size = np.full(_PIECES, self._piece_bytes, np.uint64)
        self.waiting: deque[tuple[int, ReadRows]] = deque()
        for repeat in range(_REPEATS):
            begin = first + (nbytes - self._nbytes) * repeat // _REPEATS
            steps = numbers * np.uint64((nbytes - self._piece_bytes) // (_PIECES * _REPEATS) * _REPEATS)
            shift = np.uint64(first + (nbytes - self._piece_bytes) // (_PIECES * _REPEATS) * repeat)
            packed = np.uint64(target) + numbers * np.uint64(self._piece_bytes)
            self.waiting.append((0, ReadRows(single(begin), single(target), single(1), checked=True)))
            for end in (0, self._piece_bytes - 1):
                touched = np.uint64(end)
                self.waiting.append(
                    (_TOUCH, ReadRows(shift + steps + touched, packed + touched, np.ones_like(size), checked=True))
                )
            self.waiting.append((1, ReadRows(shift + steps, packed, size, checked=True)))
            self.waiting.append((2, ReadRows(single(begin), single(target), single(self._nbytes), checked=True)))

    def note(self, trial: int, seconds: float) -> None:
        """How long one of them took; the shortest time of its kind counts."""
        self._seconds[trial] = min(self._seconds[trial], seconds)

    def cost(self) -> Cost:
        """What they say."""
        start, many, large, _ = self._seconds
        byte = max(0.0, large - start) / self._nbytes
        piece = max(0.0, many - start) / _PIECES - self._piece_bytes * byte
        return Cost(start, max(0.0, piece), byte).bounded()


def _largest(regions: RegionTable) -> tuple[int, int]:
    """Address and size of the largest region of main memory."""
    main = regions.records[regions.records["memory"] == MEMORY_KINDS.index("DRAM")]
    if not len(main):
        return 0, 0
    largest = main[np.argmax(main["nbytes"])]
    return int(largest["address"]), int(largest["nbytes"])


@cache
def copies_of_our_own(clock: Clock) -> tuple[Cost, Cost]:
    """What gathering and scattering cost in this process."""
    memory = np.zeros(_SCRATCH_BYTES, np.uint8)
    memory[:] = 1
    buffer = np.ones(_LARGE_BYTES, np.uint8)

    def best(pieces: int, size: int, run: Callable[[Pieces], None]) -> float:
        pitch = _SCRATCH_BYTES // pieces
        places = (np.random.default_rng(0).permutation(pieces) * pitch).astype(np.uint64)
        address = places + np.uint64(memory.ctypes.data)
        times = []
        for _ in range(_REPEATS):
            begun = clock()
            run(Pieces(address, size))
            times.append(clock() - begun)
        return min(times)

    def cost(run: Callable[[Pieces], None]) -> Cost:
        many, large = best(1024, 64, run), best(16, 65_536, run)
        return Cost(0.0, many / 1024, large / (16 * 65_536)).bounded()

    return cost(lambda pieces: pieces.gather(buffer)), cost(lambda pieces: pieces.scatter(buffer))
