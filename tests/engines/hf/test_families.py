"""The tiny families cover every kind of cache, in sizes that tell right from wrong."""

from __future__ import annotations

import pytest

from kvweave import models
from kvweave.core.spec import MambaSpec
from kvweave.engines.hf.families import FAMILIES

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")

NAMED = {
    "llama", "qwen3", "gemma3", "gpt-oss", "deepseek-v3", "deepseek-v4", "granite-4", "bamba", "falcon-h1",
    "nemotron-h", "qwen3-next", "kimi-linear", "jamba", "mamba2",
}  # fmt: skip


@pytest.fixture(scope="module")
def caches(tiny_folder):
    return {family: models.load(tiny_folder(family), dtype="float32") for family in FAMILIES}


def test_every_family_that_the_demo_promises_is_there():
    assert set(FAMILIES) >= NAMED


def test_all_groups_and_kinds_of_cache_occur(caches):
    groups = {group.name.split(".")[0] for cache in caches.values() for group in cache.groups}
    states = {
        layer.spec.mamba_type
        for cache in caches.values()
        for layer in cache.layers()
        if isinstance(layer.spec, MambaSpec)
    }
    assert groups == {"full", "window", "chunk", "rate", "state"}
    assert states == {"mamba1", "mamba2", "gdn_attention", "kda_attention"}


def test_axes_of_one_array_differ_in_size_so_that_no_mixed_up_order_goes_unnoticed(caches):
    for family, cache in caches.items():
        if family == "kimi-linear":  # the state of its delta attention is square by design
            continue
        for layer in cache.layers():
            for array in layer.spec.arrays():
                sizes = [axis.size for axis in array.axes]
                assert len(set(sizes)) == len(sizes), (family, layer.name, array.part)
