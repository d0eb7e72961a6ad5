from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvweave.core.bundle import MOST_KEPT, Bundle, BundleBook, bundle_reads
from kvweave.core.cache_config import CacheConfig
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MLAAttentionSpec
from tests.core.engines import engine, faults, heads_of, mamba2_of, model_of

PAIR = (heads_of(4), heads_of(4))


def bundles(specs: Sequence[LayerSpec], prefill: CacheConfig, decode: CacheConfig, tp: int = 1) -> list[Bundle]:
    model = model_of(*specs)
    plan = plan_transfer(engine(model, tp, prefill), engine(model, 1, decode))
    return list(bundle_reads(plan.of(plan.decode.rank()), salt=0))


@pytest.mark.parametrize(
    ("prefill", "decode", "parts", "join"),
    [
        ("content", "content", 1, True),
        ("page", "page", 1, True),
        ("content", "page", 1, False),
        ("region", "region", 2, True),
        ("content", "region", 2, False),
    ],
)
def test_keys_and_values_move_as_one_where_they_share_regions(
    prefill: str, decode: str, parts: int, join: bool
) -> None:
    found = bundles(PAIR, *(CacheConfig(num_blocks=4, packing=packing) for packing in (prefill, decode)))
    assert [bundle.entries_join for bundle in found] == [join] * parts


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_heads_of_one_source_join_from_entry_to_entry(tp: int) -> None:
    found = bundles(PAIR, CacheConfig(num_blocks=4), CacheConfig(32, num_blocks=4), tp)
    assert len(found) == tp and all(bundle.entries_join for bundle in found)
    assert {tuple(bundle.runs.nbytes.tolist()) for bundle in found} == {(8,) * (4 // tp)}


@pytest.mark.parametrize(("orders", "runs"), [(("DS", "DS"), 1), (("SD", "SD"), 1), (("SD", "DS"), 16)], ids=str)
def test_sections_of_a_conv_state_move_as_one(orders: tuple[str, str], runs: int) -> None:
    """Eight channels of two taps, then the ssm state; in unequal orders each element, the last joins the state."""
    (bundle,) = bundles([mamba2_of(1, 4)], *(CacheConfig(num_blocks=4, conv_order=order) for order in orders))
    assert len(bundle.runs.nbytes) == runs and int(bundle.runs.nbytes.sum()) == 8 * 2 * 2 + 4 * 2 * 4


def test_layers_at_other_distances_move_apart() -> None:
    """Keys of equal size and values of unequal size lie at other distances in each of the two kinds of layers."""
    specs = FullAttentionSpec(2, 4, 4), FullAttentionSpec(2, 4, 6), FullAttentionSpec(2, 4, 4)
    assert len(bundles(specs, CacheConfig(num_blocks=4), CacheConfig(num_blocks=4))) == 2
    assert faults(*(engine(model_of(*specs), tp) for tp in (2, 1))) == []


@pytest.mark.parametrize(
    ("layout", "block_runs"), [("HND", 1), ("NHD", None)], ids=["a page is one run", "entries join to one run"]
)
def test_a_kernel_block_has_runs_of_its_own_where_these_are_fewer(layout: str, block_runs: int | None) -> None:
    (bundle,) = bundles(PAIR, *[CacheConfig(num_blocks=4, layout=layout)] * 2)
    assert (bundle.block_runs and len(bundle.block_runs.nbytes)) == block_runs


def test_layers_rise_at_the_source_and_keep_their_target() -> None:
    [bundle] = bundles(PAIR, CacheConfig(num_blocks=4), CacheConfig(num_blocks=4))
    places, source, target = bundle.layers, bundle.source, bundle.read.target
    assert sorted(source.addresses.tolist()) == places.source.tolist()
    pairs = zip(source.addresses, target.addresses, source.regions, target.regions, strict=True)
    assert set(pairs) == set(zip(*places, strict=True))


@pytest.mark.parametrize("salt", [0, 1, 5, "request-7"])
def test_a_book_gives_each_request_the_sources_of_its_salt(salt: int | str) -> None:
    """Four equal sources, and one target that reads from them in turn."""
    model = model_of(MLAAttentionSpec(4))
    plan = plan_transfer(engine(model, 4), engine(model))
    reads = plan.of(plan.decode.rank())
    book = BundleBook(reads)
    for number in range(MOST_KEPT):
        book.of(number)
    wanted = [bundle.source.coordinates for bundle in bundle_reads(reads, salt)]
    assert [bundle.source.coordinates for bundle in book.of(salt)] == wanted
    assert book.of(salt) is book.of(salt)
