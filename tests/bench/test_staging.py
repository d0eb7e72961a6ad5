"""The figures of staged reads, and a short run of a few pieces over NIXL."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from bench.staging import LAYER_BYTES, LAYERS, Figures, Places, all_places, document, measure


def test_ratios_are_of_the_same_run() -> None:
    figures = Figures("4 KB", 100, 10, 1.0, 2.0, 4.0, 3.0)
    assert (figures.gain, figures.choice) == (4.0, 0.75)
    described = document([figures])["figures"][0]
    assert (described["gain"], described["choice"], described["pieces"]) == (4.0, 0.75, "4 KB")


@pytest.mark.parametrize("places", list(all_places()), ids=lambda places: places.name)
def test_pieces_lie_inside_the_memory_and_targets_apart(places: Places) -> None:
    rows = places.rows(0, 0)
    for side in (rows.source_address, rows.target_address):
        assert (side + rows.nbytes).max() <= LAYERS * LAYER_BYTES
    order = np.argsort(rows.target_address)
    ends = (rows.target_address + rows.nbytes)[order]
    assert (ends[:-1] <= rows.target_address[order][1:]).all()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_short_run_reads_every_way(elsewhere: bool) -> None:
    places = Places(
        "few", *(np.arange(300, dtype=np.uint64) * np.uint64(8192) for _ in range(2)), np.full(300, 4096, np.uint64), 2
    )
    [found] = measure(1, [places], elsewhere)
    assert min(found.direct, found.copied, found.staged, found.auto) > 0
    assert (found.rows, found.nbytes) == (600, 600 * 4096)
