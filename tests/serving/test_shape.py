"""An engine's keys as vLLM's options: every key has a place, and what vLLM cannot be told is refused by name."""

from __future__ import annotations

import pytest

from kvweave.cli.engine_text import KEY_NAMES, parse_engine
from kvweave.errors import ConfigurationError
from kvweave.serving.shape import OPTIONS, REFUSED, VARIABLES, ServerShape, server_shape

VALUES = {"head": "0-1", "channel": "0-1", "memory": "VRAM", "packing": "page", "mtp": "true"}


def shape(text: str) -> ServerShape:
    engine = parse_engine(text)
    return server_shape(text, engine.parallel, engine.cache, engine.model_options, engine.stated)


def test_every_key_is_an_option_a_variable_or_refused() -> None:
    assert sorted([*OPTIONS, *VARIABLES, *REFUSED]) == sorted(KEY_NAMES)


def test_sizes_and_blocks_become_options_in_the_order_stated() -> None:
    found = shape("tp=4,pp=2,block=64,blocks=900,dtype=fp8_e4m3,ssm_dtype=float32")
    assert found.arguments == (
        "--tensor-parallel-size", "4", "--pipeline-parallel-size", "2", "--block-size", "64",
        "--num-gpu-blocks-override", "900", "--kv-cache-dtype", "fp8_e4m3", "--mamba-ssm-cache-dtype", "float32",
    )  # fmt: skip
    assert found.environment == {}


def test_what_vllm_reads_from_the_environment_goes_there() -> None:
    found = shape("tp=1,pp=3,stages=10/12/8,layout=NHD,conv=DS")
    assert found.environment == {
        "VLLM_PP_LAYER_PARTITION": "10,12,8", "VLLM_KV_CACHE_LAYOUT": "LBNHC", "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
    }  # fmt: skip
    assert found.arguments == ("--tensor-parallel-size", "1", "--pipeline-parallel-size", "3")


def test_what_is_not_stated_is_left_to_vllm() -> None:
    assert shape("tp=2").arguments == ("--tensor-parallel-size", "2")


@pytest.mark.parametrize(
    ("text", "workers", "engines"), [("tp=4", 4, 1), ("tp=2,pp=3", 6, 1), ("tp=2,dp=3", 6, 3), ("tp=4,dcp=2", 4, 1)]
)
def test_workers_and_engines_are_counted(text: str, workers: int, engines: int) -> None:
    assert (shape(text).workers, shape(text).engines) == (workers, engines)


@pytest.mark.parametrize("key", [key for key in REFUSED if key != "stated"])
def test_what_vllm_cannot_be_told_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}: vLLM cannot be told: .*; leave it out$"):
        shape(f"tp=1,{key}={VALUES.get(key, 1)}")


def test_a_type_that_the_option_does_not_take_is_refused_with_those_that_it_takes() -> None:
    with pytest.raises(ConfigurationError, match="dtype: 'float32' is no choice of vLLM's --kv-cache-dtype; use one"):
        shape("tp=1,dtype=float32")


def test_prefill_context_alone_is_refused_as_the_connector_would() -> None:
    with pytest.raises(ConfigurationError, match=r"^pcp: 2 without dcp .*; add dcp=2$"):
        shape("tp=1,pcp=2")
    assert shape("tp=1,pcp=2,dcp=2").workers == 2
