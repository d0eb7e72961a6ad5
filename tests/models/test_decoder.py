import pytest

from kvweave.core.array import DType
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.models import load
from kvweave.models.decoder import Decoder, Module, Predictor, assemble, group_name

HALF = DType.of("float16")
FULL = FullAttentionSpec(2, 8)


@pytest.mark.parametrize(
    ("spec", "group"),
    [
        (FULL, "full"),
        (SlidingWindowSpec(2, 8, 128), "window.128"),
        (ChunkedLocalAttentionSpec(2, 8, 64), "chunk.64"),
        (MLAAttentionSpec(576), "full"),
        (MLAAttentionSpec(576, sliding_window=128), "window.128"),
        (MLAAttentionSpec(512, tokens_per_state=4), "rate.4"),
        (MambaSpec.mamba1(64, 16, 4, HALF, HALF), "state"),
        (CircularBufferSpec(()), "state"),
    ],
    ids=["attention", "window", "chunk", "latent", "windowed latent", "compressed", "mamba", "open group"],
)
def test_each_kind_of_spec_has_its_group(spec, group):
    assert group_name(spec) == group


def test_groups_stand_in_the_order_of_kinds_and_of_first_use_within_one():
    windows = [SlidingWindowSpec(2, 8, window) for window in (512, 128)]
    specs = [MambaSpec.mamba1(64, 16, 4, HALF, HALF), *windows, FULL]
    model = assemble("m", Decoder(tuple((Module("x", spec),) for spec in specs)))
    assert [group.name for group in model.groups] == ["full", "window.512", "window.128", "state"]


def test_layers_are_named_by_their_place_and_a_layer_may_cache_nothing():
    model = assemble("m", Decoder(((), (Module("self_attn", FULL), Module("mamba", FULL)))))
    assert [(layer.name, layer.index) for layer in model.layers()] == [
        ("model.layers.1.self_attn", 1),
        ("model.layers.1.mamba", 1),
    ]
    assert model.num_layers == 2


def test_prediction_layers_belong_to_the_last_decoder_layer():
    attention = (Module("self_attn", FULL),)
    model = assemble("m", Decoder((attention, attention), (Predictor("mtp.layers.0", attention),)))
    assert model.num_layers == 2
    assert [(layer.name, layer.index) for layer in model.layers()][-1] == ("mtp.layers.0.self_attn", 1)


def test_equal_shapes_have_equal_fingerprints_whatever_the_name():
    assert load("deepseek-v3").fingerprint == load("deepseek-r1").fingerprint != ""


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "float16"}, {"cache_dtype": "fp8_e4m3"}, {"speculative_tokens": 1}, {"ssm_dtype": "float16"}],
    ids=repr,
)
def test_whatever_shapes_the_cache_changes_the_fingerprint(changes):
    assert load("qwen3.5-9b", **changes).fingerprint != load("qwen3.5-9b").fingerprint


def test_the_fingerprint_stays_the_same_from_release_to_release():
    model = assemble("m", Decoder(((Module("self_attn", FULL),),)))
    assert model.fingerprint == "de7c9f5a4f975bb7"
