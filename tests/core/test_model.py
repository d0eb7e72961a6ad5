"""A model's cache counts its bytes once, whatever it is made of, and refuses what would be ambiguous."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvweave.core.array import DType
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache, get_representative_spec_type
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs
from kvweave.errors import ConfigurationError
from kvweave.testing.strategies import models

LATENT = MLAAttentionSpec(8)
STATE = MambaSpec.mamba1(8, 4, 4, DType.of("bfloat16"), DType.of("float32"))


def group(name: str, *layers: CacheLayer) -> KVCacheGroup:
    return KVCacheGroup(name, layers)


@given(models((1, 2)))
def test_layers_are_those_of_the_groups_in_order(model: ModelCache) -> None:
    assert list(model.layers()) == [layer for group in model.groups for layer in group.layers]


@given(models((1, 2)))
def test_each_array_costs_either_per_token_or_per_request(model: ModelCache) -> None:
    arrays = [array for layer in model.layers() for array in layer.spec.arrays()]
    rates = [array.tokens.tokens_per_entry if array.tokens else None for array in arrays]
    per_token = sum(array.entry_bytes / rate for array, rate in zip(arrays, rates, strict=True) if rate)
    per_request = sum(array.entry_bytes for array, rate in zip(arrays, rates, strict=True) if rate is None)
    assert model.bytes_per_token() == pytest.approx(per_token)
    assert model.bytes_per_request() == per_request


@given(st.integers(1, 8), st.integers(1, 128), st.integers(1, 128))
def test_a_token_of_attention_costs_its_keys_and_values(heads: int, head_size: int, head_size_v: int) -> None:
    spec = FullAttentionSpec(heads, head_size, head_size_v)
    model = ModelCache("m", 1, (group("full", CacheLayer("layer", 0, spec)),))
    assert model.bytes_per_token() == heads * (head_size + head_size_v) * 2
    assert model.bytes_per_request() == 0


@given(st.integers(1, 256))
def test_a_compressed_cache_costs_its_entry_spread_over_its_tokens(rate: int) -> None:
    spec = MLAAttentionSpec(576, tokens_per_state=rate)
    model = ModelCache("m", 1, (group("rate", CacheLayer("layer", 0, spec)),))
    assert model.bytes_per_token() == pytest.approx(1152 / rate)


def test_a_group_without_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="group full: it has no layers"):
        KVCacheGroup("full", ())


@pytest.mark.parametrize("index", [-1, 2])
def test_a_layer_outside_the_model_is_refused(index: int) -> None:
    with pytest.raises(ConfigurationError, match=f"index {index} is outside the model's 2 layers"):
        ModelCache("m", 2, (group("full", CacheLayer("layer", index, LATENT)),))


def test_a_part_that_a_layer_has_twice_is_refused() -> None:
    layer = CacheLayer("layer", 0, LATENT)
    with pytest.raises(ConfigurationError, match="layer layer: part latent appears twice"):
        ModelCache("m", 1, (group("full", layer), group("window", layer)))


def test_one_layer_may_cache_in_two_groups_under_two_names_of_parts() -> None:
    groups = (group("full", CacheLayer("layer", 0, LATENT)), group("state", CacheLayer("layer", 0, STATE)))
    assert len(list(ModelCache("m", 1, groups).layers())) == 2


def test_groups_of_one_name_are_refused() -> None:
    groups = (group("full", CacheLayer("a", 0, LATENT)), group("full", CacheLayer("b", 0, LATENT)))
    with pytest.raises(ConfigurationError, match=r"\['full'\] repeat"):
        ModelCache("m", 1, groups)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="num_layers is 0"):
        ModelCache("m", 0, ())


SPECS = st.sampled_from([LATENT, STATE, FullAttentionSpec(2, 8)])


def both_forms(*specs: LayerSpec) -> list[KVCacheGroup | UniformTypeKVCacheSpecs]:
    """Layers of these specs as a model's own group, and as vLLM's wrapper."""
    layers = [CacheLayer(f"layer.{number}", number, spec) for number, spec in enumerate(specs)]
    return [group("mixed", *layers), UniformTypeKVCacheSpecs({layer.name: layer.spec for layer in layers})]


@given(SPECS)
def test_the_type_of_a_group_of_one_type_is_that_of_its_layers(spec: LayerSpec) -> None:
    for one in (spec, *both_forms(spec, spec)):
        assert get_representative_spec_type(one) is type(spec)


@given(st.permutations([LATENT, STATE]))
def test_a_mixed_group_has_no_representative_type_and_names_its_types(specs: list[LayerSpec]) -> None:
    for mixed in both_forms(*specs):
        with pytest.raises(ConfigurationError, match=r"mixes MLAAttentionSpec, MambaSpec: .*by its own spec"):
            get_representative_spec_type(mixed)


def test_an_empty_group_has_no_representative_type() -> None:
    with pytest.raises(ConfigurationError, match="mixes no layers"):
        get_representative_spec_type(UniformTypeKVCacheSpecs({}))
