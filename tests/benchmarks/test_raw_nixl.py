from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.memory import CacheShape, scattered
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.raw_nixl import Kind, block_ids, every_block
from kvweave.benchmarks.source import Source


def test_the_incumbents_lists_have_every_block_of_every_layer() -> None:
    rows = every_block([1000, 9000], num_blocks=3, piece_bytes=64)
    assert rows.tolist() == [[base + 64 * block, 64, 0] for base in (1000, 9000) for block in range(3)]


def test_ids_follow_the_block_table_layer_by_layer() -> None:
    ids = block_ids([2, 0], num_blocks=3, layers=2)
    assert ids.tolist() == [2, 0, 5, 3] and ids.dtype == np.int64


@pytest.mark.parametrize("kind", [Kind.INCUMBENT, Kind.SINGLE], ids=str)
def test_the_incumbents_way_brings_the_right_bytes(source: Source, kind: Kind) -> None:
    pair = Pair(source, CacheShape(512, 8))
    tables = scattered(8, 4, seed=1), scattered(8, 4, seed=2)
    with pair.incumbent(kind) as reader:
        assert reader.read(*tables) > 0
        pair.require_delivered(*tables)
        assert reader.cost(*tables) > 0
        pair.require_delivered(*tables)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("kind", [Kind.INCUMBENT, Kind.SINGLE], ids=str)
def test_the_incumbents_threads_end_with_its_reader(source: Source, kind: Kind) -> None:
    """They burn a core each, beside whatever is measured next."""
    pair = Pair(source, CacheShape(512, 8))
    with pair.incumbent(kind) as reader:
        reader.cost([1], [2])
        opened = threads()
    assert threads() < opened
