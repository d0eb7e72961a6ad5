"""What a model caches, for people: one record per model and one per group of layers. No reading, no printing."""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.core.array import CacheArray, FullReach
from kvweave.core.model import KVCacheGroup, ModelCache


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Layers that share a block table.

    ``arrays`` are the distinct arrays of its layers, as text such as ``"k (head 8, dim 128) bfloat16"``. Bytes count
    every layer of the group once, over the whole model: per token (for windows: until they are full), per request
    (states), and per full window or chunk.
    """

    name: str
    layers: int
    arrays: tuple[str, ...]
    bytes_per_token: float
    bytes_per_request: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """One model. ``verified`` is a preset's ("two" or "one" independent sources), None for a file of the user's own.

    ``dtype_assumed`` is True where the file states no dtype and none was given: bfloat16 is used then.
    """

    name: str
    family: str
    architecture: str
    layers: int
    groups: tuple[GroupDescription, ...]
    bytes_per_token: float
    bytes_per_request: int
    window_bytes: int
    verified: str | None = None
    dtype_assumed: bool = False
    note: str = ""


def describe_model(
    model: ModelCache,
    family: str,
    architecture: str,
    verified: str | None = None,
    dtype_assumed: bool = False,
    note: str = "",
) -> ModelDescription:
    """The record of a model."""
    groups = tuple(describe_group(group) for group in model.groups)
    return ModelDescription(
        name=model.name,
        family=family,
        architecture=architecture,
        layers=model.num_layers,
        groups=groups,
        bytes_per_token=model.bytes_per_token(),
        bytes_per_request=model.bytes_per_request(),
        window_bytes=sum(group.window_bytes for group in groups),
        verified=verified,
        dtype_assumed=dtype_assumed,
        note=note,
    )


def describe_group(group: KVCacheGroup) -> GroupDescription:
    """The record of a group."""
    arrays = [array for layer in group.layers for array in layer.spec.arrays()]
    return GroupDescription(
        name=group.name,
        layers=len(group.layers),
        arrays=tuple(dict.fromkeys(describe_array(array) for array in arrays)),
        bytes_per_token=sum(array.entry_bytes / array.tokens.tokens_per_entry for array in arrays if array.tokens),
        bytes_per_request=sum(array.entry_bytes for array in arrays if array.tokens is None),
        window_bytes=sum(window_bytes(array) for array in arrays),
    )


def describe_array(array: CacheArray) -> str:
    """One array as text."""
    axes = ", ".join(f"{axis.name} {axis.size}" for axis in array.axes)
    rate = array.tokens.tokens_per_entry if array.tokens is not None else 1
    return f"{array.part} ({axes}) {array.dtype.name}" + (f" per {rate} tokens" if rate > 1 else "")


def window_bytes(array: CacheArray) -> int:
    """Bytes of a full window or chunk of one array; 0 for an array that keeps everything or has no tokens."""
    if array.tokens is None or isinstance(array.tokens.reach, FullReach):
        return 0
    return array.entry_bytes * array.tokens.reach.tokens // array.tokens.tokens_per_entry
