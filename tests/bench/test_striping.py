"""The striping bench: its figures, and one run over a network of this machine where that is possible."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from bench.namespaces import CannotRun, Network
from bench.striping import Drive, Figures, Run


def test_figures_are_medians_and_their_ratio() -> None:
    sources = Counter({0: 10, 1: 10, 2: 10, 3: 30})
    runs = {"all": [Run(rate, sources) for rate in (1, 8, 9)], "one": [Run(2, Counter({0: 60}))] * 3}
    found = Figures.of("large", runs)
    assert (found.all_bytes_per_second, found.one_bytes_per_second, found.ratio) == (8, 2, 4)
    assert found.request_bytes == 15
    assert found.shares == pytest.approx((1 / 6, 1 / 6, 1 / 6, 1 / 2))


def test_every_byte_comes_over_the_network_and_from_all_ranks() -> None:
    """9 MB in one request or in eight; ``run`` itself compares the bytes."""
    try:
        with Network() as network, closing(Drive(network, blocks=8, megabits=1000, engines=1)) as drive:
            large, small, one = drive.run("all", 1), drive.run("all", 8), drive.run("one", 1)
    except CannotRun as reason:
        pytest.skip(str(reason))
    assert len(set(large.bytes_from.values())) == 1
    assert set(large.bytes_from) == set(small.bytes_from) == {0, 1, 2, 3}
    assert set(one.bytes_from) == {0}
