"""Labels say of every element in memory what it is, whatever the memory order."""

from __future__ import annotations

import numpy as np
import pytest

from kvweave.core.array import DType
from kvweave.core.build import build_layout
from kvweave.core.cache_config import CacheConfig
from kvweave.core.labels import Labels, Numbering, Wanted, entries_at_source, flat_positions, label_rank
from kvweave.core.layout import EngineLayout
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig
from kvweave.core.sample import sample_tables
from kvweave.core.spec import FullAttentionSpec, SlidingWindowSpec

NUM_TOKENS = 21
HEADS = FullAttentionSpec(4, 8, dtype=DType.of("float16"))
WINDOW = SlidingWindowSpec(4, 8, 6, dtype=DType.of("float16"))


def engine(tp: int, cache: CacheConfig, spec: FullAttentionSpec | SlidingWindowSpec = HEADS) -> EngineLayout:
    layers = tuple(CacheLayer(f"layers.{index}", index, spec) for index in range(2))
    return build_layout(ModelCache("m", 2, (KVCacheGroup("g", layers),)), ParallelConfig(tp=tp), cache)


def labels_of(layout: EngineLayout, numbering: Numbering) -> list[Labels]:
    tables = sample_tables(layout, NUM_TOKENS, np.random.default_rng(1))
    return [label_rank(rank, tables, NUM_TOKENS, numbering, None) for rank in layout.ranks]


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"])
@pytest.mark.parametrize("tp", [1, 2])
def test_every_element_is_labelled_once_whatever_the_order(order: str, tp: int) -> None:
    layouts = [engine(tp, CacheConfig(8, order, num_blocks=4)), engine(1, CacheConfig(16, num_blocks=2))]
    numbering = Numbering.of(*layouts)
    found, plain = (np.concatenate([part.label for part in labels_of(layout, numbering)]) for layout in layouts)
    assert len(np.unique(found)) == len(found)
    assert np.array_equal(np.sort(found), np.sort(plain))


def test_elements_never_lie_over_one_another() -> None:
    layout = engine(2, CacheConfig(8, "BHLNC", num_blocks=4, page_padding=32))
    for labels in labels_of(layout, Numbering.of(layout)):
        assert np.all(labels.address[:-1] + labels.nbytes[:-1].astype(np.uint64) <= labels.address[1:])


def test_bytes_inside_an_element_are_known_and_others_are_not() -> None:
    layout = engine(1, CacheConfig(8, num_blocks=4))
    labels = labels_of(layout, Numbering.of(layout))[0]
    inside, size = labels.address[:1] + np.uint64(2), labels.nbytes[:1]
    assert labels.at(inside, size - 2).tolist() == (labels.label[:1] + 2).tolist()
    assert labels.at(inside, size).tolist() == [-1]


def test_a_window_wants_what_the_source_still_has() -> None:
    layout = engine(1, CacheConfig(4, num_blocks=8), WINDOW)
    tables = sample_tables(layout, NUM_TOKENS)
    held = entries_at_source(layout, tables, NUM_TOKENS)
    assert all(np.flatnonzero(entries)[0] == 16 for entries in held.values())
    wanted = label_rank(layout.ranks[0], tables, NUM_TOKENS, Numbering.of(layout), Wanted(18, held))
    assert len(wanted.label) == 2 * 2 * 4 * (NUM_TOKENS - 18)


def test_regions_lie_behind_one_another() -> None:
    rank = engine(1, CacheConfig(8, num_blocks=4)).ranks[0]
    addresses = np.array([region.address for region in rank.regions], dtype=np.uint64)
    assert flat_positions(rank, np.array([0, 1], dtype=np.int32), addresses).tolist() == [0, rank.regions[0].nbytes]
