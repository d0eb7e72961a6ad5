"""Random drafters for the tiny Llama, and a prefill and a decode server that speculate with the same one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NUM_SPECULATED = 2


def eagle(model: Path, folder: Path) -> Path:
    """Saves an EAGLE head of one layer for the Llama in ``model`` to ``folder``; returns the folder."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, key_heads = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {
        "embed_tokens": (config["vocab_size"], hidden), "fc": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj": (heads, hidden), "layers.0.self_attn.k_proj": (key_heads, hidden),
        "layers.0.self_attn.v_proj": (key_heads, hidden), "layers.0.self_attn.o_proj": (hidden, heads),
        "layers.0.mlp.gate_proj": (inner, hidden), "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner), "layers.0.post_attention_layernorm": (hidden,),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(4)
    weights = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.25 for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    return folder


def speculative(method: str, **options: Any) -> tuple[str, str]:
    """vLLM's arguments."""
    return "--speculative-config", json.dumps({"method": method, "num_speculative_tokens": NUM_SPECULATED, **options})
