"""Tiny random models that vLLM's CPU backend runs, one per kind of cache, and a small real one.

Its attention wants head sizes from 32 on, so some of the embedded engine's families are a little wider here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvweave.engines.hf.families import FAMILIES


@dataclass(frozen=True)
class ServedModel:
    """A family (or ``SMOLLM2``) with changed values, and what vLLM needs to run it on a CPU.

    ``prefix_caching`` is off where vLLM's Mamba2 scan for CPUs then ends the engine with an IndexError (seen in 0.32).
    ``repeatable`` says whether one server's tokens are the same from run to run.
    """

    family: str
    values: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    prefix_caching: bool = True
    repeatable: bool = True
    seed: int = 20
    arguments: tuple[str, ...] = ()


SMOLLM2 = "smollm2"
"""Not a family: the real model of ``kvweave demo``, with three KV heads."""

_GATED = {"head_dim": 64, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64}
_WIDE = {"hidden_size": 256, "mamba_d_head": 64}

MODELS: Mapping[str, ServedModel] = {
    "llama": ServedModel("llama"),
    "llama-tuned": ServedModel("llama", seed=21),
    "llama-2heads": ServedModel("llama", {"num_key_value_heads": 2}),
    "llama-1head": ServedModel("llama-mqa"),
    "llama-deep": ServedModel("llama", {"num_hidden_layers": 32, "num_key_value_heads": 2, "head_dim": 64}),
    "smollm2": ServedModel(SMOLLM2),
    "gemma3": ServedModel("gemma3", {"sliding_window": 128}),
    "gpt-oss": ServedModel("gpt-oss", {"sliding_window": 128}),
    "granite-4": ServedModel("granite-4", _WIDE, prefix_caching=False),
    "falcon-h1": ServedModel("falcon-h1", _WIDE | {"mamba_d_ssm": 512}, prefix_caching=False),
    "nemotron-h": ServedModel("nemotron-h", {"mamba_head_dim": 64}, prefix_caching=False),
    "mamba2": ServedModel("mamba2", {"hidden_size": 256, "head_dim": 64}, prefix_caching=False),
    "qwen3-next": ServedModel("qwen3-next", _GATED, dtype="bfloat16", repeatable=False),
    "deepseek-v2": ServedModel("deepseek-v2", _LATENT, dtype="bfloat16", repeatable=False),
}


def served_model(name: str, folder: Path) -> Path:
    """The model's folder below ``folder``, made if it is not there."""
    from kvweave.engines.hf.model_source import model_folder
    from kvweave.engines.hf.tiny import save_random_model

    chosen = MODELS[name]
    if chosen.family == SMOLLM2:
        return model_folder(SMOLLM2)
    family = FAMILIES[chosen.family]
    target = folder / name
    if not (target / "config.json").exists():
        save_random_model(family.model_type, dict(family.values) | dict(chosen.values), target, chosen.seed)
    return target
