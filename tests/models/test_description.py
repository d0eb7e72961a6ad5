import pytest

from kvweave.models import CacheOptions, describe, presets


def test_a_description_says_what_each_group_caches():
    gemma = describe("gemma-3-27b")
    assert (gemma.family, gemma.architecture, gemma.layers) == ("Gemma 3", "Gemma3ForConditionalGeneration", 62)
    assert [(group.name, group.layers) for group in gemma.groups] == [("full", 10), ("window.1024", 52)]
    assert gemma.groups[0].arrays == ("k (head 16, dim 128) bfloat16", "v (head 16, dim 128) bfloat16")


def test_window_bytes_are_those_of_full_windows():
    assert describe("gemma-3-27b").window_bytes == 52 * 1024 * 2 * 16 * 128 * 2
    assert describe("llama-3.1-8b").window_bytes == 0


def test_a_compressed_entry_counts_its_share_of_a_token():
    group = next(group for group in describe("deepseek-v4-flash").groups if group.name == "rate.128")
    assert group.arrays == ("latent (dim 512) bfloat16 per 128 tokens",)
    assert group.bytes_per_token == 20 * 512 * 2 / 128


@pytest.mark.parametrize("name", presets())
def test_groups_add_up_to_the_model(name):
    model = describe(name)
    assert sum(group.bytes_per_token for group in model.groups) == model.bytes_per_token
    assert sum(group.bytes_per_request for group in model.groups) == model.bytes_per_request


def test_a_description_says_how_far_it_is_verified_and_what_was_assumed():
    assert describe("deepseek-v4-pro").verified == "one"
    assert describe("minimax-m2").dtype_assumed
    assert not describe("minimax-m2", CacheOptions(dtype="bfloat16")).dtype_assumed
    assert not describe("gemma-3-27b").dtype_assumed
