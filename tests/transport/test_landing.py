from __future__ import annotations

import numpy as np

from kvweave.transport.landing import MOST_STATUS_ROWS, NUM_LANDINGS, Landing


def test_slots_and_status_rows_lie_inside_and_apart() -> None:
    landing = Landing()
    parts = [landing.slot(number) for number in landing.free_slots] + [landing.for_trials]
    parts += [landing.status(number).view(np.uint8) for number in landing.free_status]
    starts = sorted((part.ctypes.data, part.nbytes) for part in parts)
    assert all(start + nbytes <= following for (start, nbytes), (following, _) in zip(starts, starts[1:], strict=False))
    assert starts[0][0] == landing.memory.ctypes.data
    assert sum(starts[-1]) == landing.memory.ctypes.data + landing.memory.nbytes


def test_the_slot_for_trials_is_never_free() -> None:
    landing = Landing()
    assert (len(landing.free_slots), len(landing.free_status)) == (NUM_LANDINGS, MOST_STATUS_ROWS)
    assert NUM_LANDINGS not in landing.free_slots
