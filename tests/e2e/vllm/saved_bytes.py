"""Records of a small request as ``recording`` would save them, written head by head into pages; faults can be planted.

The model's content is random bytes by layer and part. A page is filled from it by the rank's own share, in the order
that ``live_slices`` names, so that reading it back is not the same code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LATENT_MODEL = {"num_hidden_layers": 2, "kv_lora_rank": 6, "qk_rope_head_dim": 2}
HYBRID_MODEL = {
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 2,
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
    "linear_value_head_dim": 2, "linear_conv_kernel_dim": 4,
}  # fmt: skip
STATE_MODEL = HYBRID_MODEL | {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
TOKENS, BLOCK = 70, 32
STATE_DTYPES = ("bfloat16", "float32")

Rows = dict[str, Any]


def save_side(folder: Path, config: Mapping[str, Any], kind: str, tp_size: int, request: str = "one") -> None:
    """The records of all ranks of one side."""
    for tp in range(tp_size):
        rows, layers = {}, []
        for number in range(config["num_hidden_layers"]):
            name = f"model.layers.{number}.self_attn"
            rows[name], states = _rows(config, number, tp_size, tp)
            layers.append({"name": name, "block_size": BLOCK, "isa": "vec"} | states)
        facts = {
            "kind": kind, "request": request, "prompt_tokens": TOKENS + (kind == "delivery"), "first": 0,
            "stop": TOKENS, "pp": 0, "tp": tp, "tp_size": tp_size, "layers": layers, "mamba_cache_mode": "none",
            "dtype": "bfloat16",
        }  # fmt: skip
        save(_path(folder, kind, tp, request), facts, rows)


def save_pair(folder: Path, config: Mapping[str, Any], sizes: tuple[int, int]) -> None:
    """The records of an offer and of its faultless delivery."""
    save_side(folder, config, "offer", sizes[0])
    save_side(folder, config, "delivery", sizes[1])


def load(folder: Path, kind: str, tp: int, request: str = "one") -> tuple[dict[str, Any], Rows]:
    """A record's facts and rows, to be changed."""
    with np.load(_path(folder, kind, tp, request)) as saved:
        rows = {name: saved[name].copy() for name in saved.files if name != "facts"}
        return json.loads(saved["facts"].tobytes()), rows


def save(path: Path, facts: Mapping[str, Any], rows: Rows) -> None:
    """Writes a record."""
    np.savez(path, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **rows)


def plant(folder: Path, kind: str, tp: int, facts: Mapping[str, Any], rows: Rows) -> None:
    """Writes a changed record back."""
    save(_path(folder, kind, tp, "one"), facts, rows)


def _path(folder: Path, kind: str, tp: int, request: str) -> Path:
    return folder / f"{kind} {request} pp0 tp{tp}.npz"


def _content(layer: int, part: str, shape: tuple[int, ...]) -> Any:
    seed = layer * 100 + sum(part.encode())
    return np.random.default_rng(seed).integers(1, 100, shape, dtype=np.uint8)


def _rows(config: Mapping[str, Any], number: int, tp_size: int, tp: int) -> tuple[Any, dict[str, Any]]:
    none: dict[str, Any] = {"state_shapes": [], "state_dtypes": []}
    if "kv_lora_rank" in config:
        return _in_blocks(_content(number, "latent", (TOKENS, 1, 16))), none
    if config["layer_types"][number] == "linear_attention":
        return _state(config, number, tp_size, tp)
    return _keys_and_values(config, number, tp_size, tp), none


def _in_blocks(content: Any) -> Any:
    """(token, head, byte) to (block, 1, head, token in the block, byte)."""
    padded = np.zeros((-(-TOKENS // BLOCK) * BLOCK, *content.shape[1:]), dtype=np.uint8)
    padded[: len(content)] = content
    blocks = padded.reshape(-1, 1, BLOCK, *content.shape[1:])
    return blocks.transpose(0, 1, 3, 2, 4)


def _keys_and_values(config: Mapping[str, Any], number: int, tp_size: int, tp: int) -> Any:
    """Per head and block a tile of K, dim-major, then a tile of V, token-major (instruction set vec)."""
    heads, size = config["num_key_value_heads"], config["head_dim"]
    share = heads // tp_size
    found = []
    for part in ("k", "v"):
        blocks = _in_blocks(_content(number, part, (TOKENS, heads, size * 2))[:, tp * share : (tp + 1) * share])
        elements = blocks.reshape(*blocks.shape[:4], size, 2)
        found.append(elements.swapaxes(3, 4) if part == "k" else elements)
    flat = [half.reshape(*half.shape[:3], -1) for half in found]
    return np.concatenate(flat, axis=3).reshape(-1, 1, share, BLOCK, 2 * size * 2)


def _state(config: Mapping[str, Any], number: int, tp_size: int, tp: int) -> tuple[Any, dict[str, Any]]:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    sections = []
    for part, heads, width in (("conv.q", keys, key), ("conv.k", keys, key), ("conv.v", values, value)):
        share = heads // tp_size * width * 2
        sections.append(_content(number, part, (3, heads * width * 2))[:, tp * share : (tp + 1) * share])
    share = values // tp_size
    state = _content(number, "ssm", (values, value * key * 4))[tp * share : (tp + 1) * share]
    page = np.concatenate([np.concatenate(sections, axis=1).reshape(-1), state.reshape(-1)])
    channels = sum(section.shape[1] for section in sections) // 2
    shapes = {"state_shapes": [[3, channels], [share, value, key]], "state_dtypes": list(STATE_DTYPES)}
    return page.reshape(1, 1, 1, 1, -1), shapes
