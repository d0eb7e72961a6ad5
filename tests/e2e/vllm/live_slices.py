"""Which bytes of a rank's saved tensors are which part of the model, from its config.json and vLLM's layouts alone.

Nothing here knows kvweave's specs, layouts or plans. The sources are vLLM's own:

==================  ==================================================================================================
MLA                 every tensor rank keeps all of it; a row is the latent, then the rotated key
                    (``concat_and_cache_mla``)
K and V             heads cut over the tensor ranks, or one head that neighbours share (``QKVParallelLinear``); inside a
                    head's page as vLLM's kernel ``cpu_attn_reshape_and_cache`` writes them, which is asked with numbers
gated delta net     the convolution's taps, then the recurrent state (``MambaBase.bind_kv_cache``); taps as
                    [tap][q | k | v channels], each section cut by heads (``QwenGatedDeltaNetAttention``)
==================  ==================================================================================================

The state after t tokens is in block ``(t - 1) // block_size`` of the request, or in its only one (``MambaManager``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class Piece:
    """One part of one layer for one head: (token, byte), or (1, byte) of a state."""

    layer: int
    part: str
    head: int
    values: Bytes

    @property
    def key(self) -> tuple[int, str, int]:
        """What it is, whoever holds it."""
        return self.layer, self.part, self.head

    @property
    def is_state(self) -> bool:
        """Whether it has no tokens."""
        return self.part.startswith("conv.") or self.part == "ssm"


@dataclass(frozen=True)
class Record:
    """What ``recording`` saved of a request on one rank: vLLM's facts, and rows (block, kernel, head, state, byte)."""

    facts: Mapping[str, Any]
    rows: Mapping[str, Bytes]

    @staticmethod
    def read(path: Path) -> Record:
        """A record's file."""
        with np.load(path) as saved:
            rows = {name: saved[name] for name in saved.files if name != "facts"}
            return Record(json.loads(saved["facts"].tobytes()), rows)

    @property
    def rank(self) -> str:
        """Its name in a report."""
        return f"pp{self.facts['pp']} tp{self.facts['tp']}"


class WrongSize(ValueError):
    """vLLM's tensors are not as large as the configuration says, so that nothing can be told of them."""


def pieces(config: Mapping[str, Any], record: Record) -> Iterator[Piece]:
    """Everything that a rank holds of a request, head by head."""
    for layer in record.facts["layers"]:
        number = next(int(word) for word in layer["name"].split(".") if word.isdigit())
        rows = record.rows[layer["name"]]
        if "kv_lora_rank" in config:
            yield _latent(config, record, layer, number, rows)
        elif _is_linear(config, number):
            yield from _delta_net(config, record, layer, number, rows)
        else:
            yield from _attention(config, record, layer, number, rows)


def heads_of(count: int, size: int, rank: int) -> range:
    """The heads of a tensor rank: a share of them, or one that neighbouring ranks share."""
    share = max(1, count // size)
    first = rank * count // size
    return range(first, first + share)


def _is_linear(config: Mapping[str, Any], number: int) -> bool:
    kinds = config.get("layer_types") or []
    return number < len(kinds) and kinds[number] == "linear_attention"


def _latent(config: Mapping[str, Any], record: Record, layer: Mapping[str, Any], number: int, rows: Bytes) -> Piece:
    size = (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * ITEM_BYTES[record.facts["dtype"]]
    blocks, kernels, heads, states, found = rows.shape
    _require(layer, "one head's row", (1, size, layer["block_size"]), (heads, found, kernels * states))
    return Piece(number, "latent", 0, rows.reshape(blocks * kernels * states, size)[: record.facts["stop"]])


def _attention(
    config: Mapping[str, Any], record: Record, layer: Mapping[str, Any], number: int, rows: Bytes
) -> Iterator[Piece]:
    item, size = ITEM_BYTES[record.facts["dtype"]], config["head_dim"]
    mine = heads_of(config["num_key_value_heads"], record.facts["tp_size"], record.facts["tp"])
    blocks, kernels, heads, states, found = rows.shape
    wanted = (len(mine), 2 * size * item, layer["block_size"])
    _require(layer, "heads, row, block", wanted, (heads, found, kernels * states))
    places = kernel_places(layer["isa"], states, size, record.facts["dtype"])
    for slot, head in enumerate(mine):
        elements = rows[:, :, slot].reshape(blocks * kernels, states * 2 * size, item)
        for part, place in zip(("k", "v"), places, strict=True):
            tokens = elements[:, place].reshape(blocks * kernels * states, size * item)
            yield Piece(number, part, head, tokens[: record.facts["stop"]])


def _delta_net(
    config: Mapping[str, Any], record: Record, layer: Mapping[str, Any], number: int, rows: Bytes
) -> Iterator[Piece]:
    tp, size = record.facts["tp"], record.facts["tp_size"]
    key_heads = heads_of(config["linear_num_key_heads"], size, tp)
    value_heads = heads_of(config["linear_num_value_heads"], size, tp)
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    taps = config["linear_conv_kernel_dim"] - 1
    sections = (("conv.q", key_heads, key), ("conv.k", key_heads, key), ("conv.v", value_heads, value))
    channels = sum(len(heads) * width for _, heads, width in sections)
    _require(layer, "states", [[taps, channels], [len(value_heads), value, key]], layer["state_shapes"])
    conv_item, state_item = (ITEM_BYTES[dtype] for dtype in layer["state_dtypes"])
    page = rows[_state_block(record, layer)].reshape(-1)
    conv = page[: taps * channels * conv_item].reshape(taps, channels * conv_item)
    state = page[taps * channels * conv_item :][: len(value_heads) * value * key * state_item]
    first = 0
    for part, heads, width in sections:
        for head in heads:
            run = width * conv_item
            yield Piece(number, part, head, conv[:, first : first + run].reshape(1, -1))
            first += run
    for head, matrix in zip(value_heads, state.reshape(len(value_heads), -1), strict=True):
        yield Piece(number, "ssm", head, matrix.reshape(1, -1))


def _state_block(record: Record, layer: Mapping[str, Any]) -> int:
    """The place of the running state's block among the request's blocks."""
    if record.facts["mamba_cache_mode"] == "none":
        return 0
    return (int(record.facts["stop"]) - 1) // int(layer["block_size"])


@cache
def kernel_places(isa: str, entries: int, head_size: int, dtype: str) -> tuple[Any, Any]:
    """Where vLLM's CPU kernel puts (token, dim) of K and of V in a head's page of that many entries, in elements.

    Tokens are numbered in one run of the kernel and dims in another, as values that every dtype tells apart.
    """
    import torch
    from vllm import _custom_ops as vllm_ops

    kind, bits = getattr(torch, dtype), {2: torch.int16, 4: torch.int32}[ITEM_BYTES[dtype]]
    one = int(torch.ones(1, dtype=kind).view(bits)[0])
    found = []
    for axis, count in ((0, entries), (1, head_size)):
        numbers = torch.arange(count, dtype=torch.int64).reshape((-1, 1) if axis == 0 else (1, -1))
        labels = (numbers.expand(entries, head_size) + one).to(bits).contiguous().view(kind)[:, None]
        page = torch.zeros(1, 1, entries * 2, head_size, dtype=kind)
        keys, values = page.chunk(2, dim=2)
        vllm_ops.cpu_attn_reshape_and_cache(labels, labels, keys, values, torch.arange(entries), isa)
        found.append(page.view(bits).reshape(2, -1).to(torch.int64).numpy() - one)
    places = np.zeros((2, entries, head_size), dtype=np.int64)
    for half in range(2):
        places[half, found[0][half], found[1][half]] = np.arange(entries * head_size) + half * entries * head_size
    return places[0], places[1]


def _require(layer: Mapping[str, Any], what: str, wanted: Any, found: Any) -> None:
    if wanted != found:
        raise WrongSize(f"{layer['name']}: {what} {found} in vLLM, but {wanted} by the model's configuration")
