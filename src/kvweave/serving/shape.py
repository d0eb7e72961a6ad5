"""From an engine's keys to what vLLM is told: a command line option, an environment variable, or a refusal.

What was not stated is not passed on, so that vLLM's own defaults hold. Keys that describe what vLLM decides itself
(packing, padding, kernel blocks) are refused, and so are those that vLLM takes in another form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvweave.core.cache_config import CacheConfig
from kvweave.core.parallel import ParallelConfig
from kvweave.errors import ConfigurationError

OPTIONS = {
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "dp": "--data-parallel-size",
    "dcp": "--decode-context-parallel-size",
    "pcp": "--prefill-context-parallel-size",
    "interleave": "--cp-kv-cache-interleave-size",
    "block_size": "--block-size",
    "num_blocks": "--num-gpu-blocks-override",
    "dtype": "--kv-cache-dtype",
    "conv_dtype": "--mamba-cache-dtype",
    "ssm_dtype": "--mamba-ssm-cache-dtype",
}
"""Keys that are one of vLLM's options (``EngineArgs.add_cli_args``)."""

VARIABLES = {
    "stage_layers": "VLLM_PP_LAYER_PARTITION",
    "layout": "VLLM_KV_CACHE_LAYOUT",
    "conv_order": "VLLM_SSM_CONV_STATE_LAYOUT",
}
"""Keys that vLLM reads from the environment (``vllm/envs.py``)."""

REFUSED = {
    "head": "vLLM cuts heads evenly",
    "channel": "vLLM cuts channels evenly",
    "stated": "vLLM cuts every axis evenly",
    "kernel_block_size": "the attention backend chooses it",
    "packing": "the attention backend chooses it",
    "page_padding": "vLLM pads pages as it needs",
    "speculative_blocks": "they follow from --speculative-config, which you may write behind --",
    "speculative_tokens": "write --speculative-config behind --",
    "mtp": "write --speculative-config behind --",
    "memory": "it is where vLLM computes",
    "device": "devices are dealt out in order; CUDA_VISIBLE_DEVICES says which there are",
}
"""Keys that vLLM cannot be told, with the reason."""

CHOICES = {
    "dtype": ("bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"),
    "conv_dtype": ("bfloat16", "float16", "float32"),
    "ssm_dtype": ("bfloat16", "float16", "float32"),
}
"""Types that vLLM's options take, by key (``CacheDType`` and ``MambaDType`` of vLLM's cache configuration)."""


@dataclass(frozen=True, slots=True)
class ServerShape:
    """What makes one server of a shape: ``workers`` processes (one device each), arguments, environment.

    ``text`` is the shape as the user wrote it; ``engines`` counts its data parallel ranks.
    """

    text: str
    workers: int
    engines: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def server_shape(
    text: str, parallel: ParallelConfig, cache: CacheConfig, model: Mapping[str, Any], stated: Iterable[str]
) -> ServerShape:
    """The server of an engine of which the keys ``stated`` were stated, by their long names.

    Raises ``ConfigurationError`` that names a key which vLLM cannot be told, and why; also for pcp without dcp, which
    the connector refuses.
    """
    if parallel.pcp > 1 and parallel.dcp == 1:
        raise ConfigurationError(f"pcp: {parallel.pcp} without dcp is refused by the connector; add dcp={parallel.pcp}")
    arguments: list[str] = []
    environment: dict[str, str] = {}
    for key in stated:
        if key in REFUSED:
            raise ConfigurationError(f"{key}: vLLM cannot be told: {REFUSED[key]}; leave it out")
        value = _value(key, parallel, cache, model)
        if key in OPTIONS:
            arguments += [OPTIONS[key], value]
        else:
            environment[VARIABLES[key]] = value
    workers = parallel.ranks_per_engine * parallel.dp
    return ServerShape(text, workers, parallel.dp, tuple(arguments), environment)


def _value(key: str, parallel: ParallelConfig, cache: CacheConfig, model: Mapping[str, Any]) -> str:
    if key in model:
        value = model[key]
    else:
        value = next(getattr(owner, key) for owner in (parallel, cache) if hasattr(owner, key))
    if key in CHOICES and value not in CHOICES[key]:
        raise ConfigurationError(
            f"{key}: {value!r} is no choice of vLLM's {OPTIONS[key]}; use one of {', '.join(CHOICES[key])}, or leave "
            "it out: the model's own type then holds, which --dtype behind -- changes"
        )
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
