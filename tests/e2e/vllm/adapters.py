"""A random LoRA adapter for a tiny Llama, strong enough to change its tokens."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 8


def random_adapter(model: Path, folder: Path, seed: int = 3) -> Path:
    """Saves an adapter of the query and value projections to ``folder``; returns it."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    heads, key_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    widths = {"q_proj": heads * size, "v_proj": key_heads * size}
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{where}.lora_A.weight"] = torch.randn(RANK, config["hidden_size"], generator=generator) * 0.5
            weights[f"{where}.lora_B.weight"] = torch.randn(width, RANK, generator=generator) * 0.5
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(widths), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(stated | {"task_type": "CAUSAL_LM"}))
    return folder
