"""An engine in a user's words: ``tp=4,block=16,layout=HND``, or a YAML file with the same keys by their long names.

A key belongs to the parallel shape, the cache, or the model as this engine runs it. Every key has a long name (that of
``ParallelConfig``, ``CacheConfig`` or ``CacheOptions``), most have a short one, and either is understood in both forms.
In text, lists are written with slashes: ``stages=10/12/8``, ``head=0-2/2-3`` (stated intervals, half open, one per
tensor rank). In YAML they are lists::

    tp: 2
    pp: 3
    stage_layers: [10, 12, 8]
    stated: {head: [[0, 2], [2, 3]]}

A key that does not exist is an error that names the nearest one, and all of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvweave.cli.engine_file import read_engine_file
from kvweave.core.array import DType
from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Interval
from kvweave.core.parallel import ParallelConfig
from kvweave.errors import ConfigurationError

MOST_RANKS = 4096
"""Ranks of one engine that the command line takes; more would be a typing error."""

_ADDRESS = re.compile(r"(\w+://.*|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+)")


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """One engine as the user described it.

    ``model_options`` are what it states about the model it runs: keywords of ``kvweave.models.load``. ``stated`` are
    the keys that were stated, by their long names.
    """

    parallel: ParallelConfig
    cache: CacheConfig
    model_options: Mapping[str, Any]
    stated: tuple[str, ...]

    @property
    def states_num_blocks(self) -> bool:
        """Whether the number of blocks was stated."""
        return "num_blocks" in self.stated


@dataclass(frozen=True, slots=True)
class _Key:
    """A key: its names, where its value goes, how the value is read, and the largest number that makes sense."""

    name: str
    short: str
    owner: str
    read: Callable[[_Key, Any], Any]
    most: int = 1 << 20

    @property
    def names(self) -> tuple[str, ...]:
        return (self.short, self.name) if self.short != self.name else (self.name,)

    def refuse(self, value: object, wanted: str) -> ConfigurationError:
        shown = "an empty value" if value in ("", None) else repr(value)
        return ConfigurationError(f"{self.short}: {shown} is not {wanted}")


def parse_engine(text: str) -> EngineDescription:
    """The engine that ``text`` describes: short text, or the path of a YAML file.

    Raises ``ConfigurationError`` for whatever cannot be understood, naming key, value and remedy.
    """
    stripped = text.strip()
    path = Path(stripped)
    if path.suffix in (".yaml", ".yml") or (stripped and "=" not in stripped and path.is_file()):
        return _within(str(path), read_engine_file(path))
    if "=" not in stripped and _ADDRESS.fullmatch(stripped):
        raise ConfigurationError(
            f"{stripped!r} is an address; describe the engine as text (tp=4,block=16) or in a YAML file, or let "
            "`kvweave check HOST:PORT HOST:PORT` ask two running ones"
        )
    return describe_engine(_pairs(stripped))


def describe_engine(pairs: Iterable[tuple[str, object]]) -> EngineDescription:
    """The engine with these keys and values; values are text, or what YAML made of it."""
    owned: dict[str, dict[str, Any]] = {"parallel": {}, "cache": {}, "model": {}, "stated": {}}
    names: list[str] = []
    for name, value in pairs:
        key = _find(name)
        if key.name in owned[key.owner]:
            raise ConfigurationError(f"{name}: stated twice; state it once")
        owned[key.owner][key.name] = key.read(key, value)
        names.append(key.name)
    stated = {**owned["parallel"].pop("stated", {}), **owned["stated"]}
    parallel = ParallelConfig(**owned["parallel"], stated=stated)
    if parallel.ranks_per_engine > MOST_RANKS:
        raise ConfigurationError(
            f"tp*pp*pcp: {parallel.ranks_per_engine} ranks are more than {MOST_RANKS}; choose smaller sizes"
        )
    cache = CacheConfig(**owned["cache"])
    return EngineDescription(parallel, cache, owned["model"], tuple(names))


def known_keys() -> str:
    """All keys by their short names, as the messages and the help list them."""
    return ", ".join(key.short for key in _KEYS)


def _within(path: str, pairs: Iterable[tuple[str, object]]) -> EngineDescription:
    try:
        return describe_engine(pairs)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _pairs(text: str) -> list[tuple[str, object]]:
    if not text:
        raise ConfigurationError("an empty engine description; state at least one key, such as tp=1")
    pairs: list[tuple[str, object]] = []
    for item in text.split(","):
        name, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals:
            shown = repr(name) if name else "nothing between two commas"
            raise ConfigurationError(
                f"{shown} has no '='; write key=value, such as tp=4, or name a YAML file that exists"
            )
        pairs.append((name, value))
    return pairs


def _find(name: str) -> _Key:
    for key in _KEYS:
        if name in key.names:
            return key
    every = {known: known for key in _KEYS for known in key.names} | _ELSEWHERE
    close = difflib.get_close_matches(str(name), every, n=1, cutoff=0.5)
    meant = f"; did you mean {every[close[0]]}?" if close else ""
    raise ConfigurationError(f"{name}: no such key{meant} (the keys are {known_keys()})")


def _number(key: _Key, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise key.refuse(value, f"a whole number, such as {key.short}=1")
    if not 0 <= value <= key.most:
        raise key.refuse(value, f"between 0 and {key.most}; choose a number in between")
    return value


def _truth(key: _Key, value: object) -> bool:
    known = {"true": True, "false": False, "on": True, "off": False}
    found = value if isinstance(value, bool) else known.get(str(value).lower())
    if found is None:
        raise key.refuse(value, "true or false; state one of them")
    return found


def _word(key: _Key, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise key.refuse(value, "a word; state one")
    return value


def _lower(key: _Key, value: object) -> str:
    return _word(key, value).lower()


def _upper(key: _Key, value: object) -> str:
    return _word(key, value).upper()


def _dtype(key: _Key, value: object) -> str:
    return DType.of(_word(key, value)).name


def _numbers(key: _Key, value: object) -> tuple[int, ...]:
    items = value.split("/") if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise key.refuse(value, f"a list of whole numbers, one per stage, such as {key.short}=10/12/8")
    return tuple(_number(key, item) for item in items)


def _intervals(key: _Key, value: object) -> tuple[Interval, ...]:
    items = [item.split("-") for item in value.split("/")] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise key.refuse(value, f"a list of intervals, one per tensor rank, such as {key.short}=0-2/2-3")
    found = []
    for item in items:
        start, stop = (_number(key, edge) for edge in item)
        if start >= stop:
            raise key.refuse(f"{start}-{stop}", "an interval with start below stop; state first-last+1")
        found.append(Interval(start, stop))
    return tuple(found)


def _stated(key: _Key, value: object) -> dict[str, tuple[Interval, ...]]:
    if not isinstance(value, Mapping):
        raise key.refuse(value, "a mapping from axis to intervals; in text write head=0-2/2-3")
    unknown = [axis for axis in value if axis not in _AXES]
    if unknown:
        raise key.refuse(unknown[0], f"an axis that tensor parallelism splits; use {' or '.join(_AXES)}")
    return {axis: _intervals(key, intervals) for axis, intervals in value.items()}


_ELSEWHERE = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "decode_context_parallel_size": "dcp",
    "prefill_context_parallel_size": "pcp",
    "cp_kv_cache_interleave_size": "interleave",
    "kv_cache_dtype": "dtype",
    "num_gpu_blocks": "blocks",
}
"""What vLLM calls these keys, for those who type it by habit."""

_AXES = ("head", "channel")

_KEYS = (
    _Key("tp", "tp", "parallel", _number, MOST_RANKS),
    _Key("pp", "pp", "parallel", _number, MOST_RANKS),
    _Key("dcp", "dcp", "parallel", _number, MOST_RANKS),
    _Key("pcp", "pcp", "parallel", _number, MOST_RANKS),
    _Key("dp", "dp", "parallel", _number),
    _Key("interleave", "interleave", "parallel", _number),
    _Key("stage_layers", "stages", "parallel", _numbers),
    *(_Key(axis, axis, "stated", _intervals) for axis in _AXES),
    _Key("stated", "stated", "parallel", _stated),
    _Key("block_size", "block", "cache", _number, 1 << 16),
    _Key("kernel_block_size", "kernel_block", "cache", _number, 1 << 16),
    _Key("layout", "layout", "cache", _upper),
    _Key("packing", "packing", "cache", _lower),
    _Key("conv_order", "conv", "cache", _upper),
    _Key("page_padding", "padding", "cache", _number, 1 << 30),
    _Key("num_blocks", "blocks", "cache", _number, 1 << 30),
    _Key("dtype", "dtype", "cache", _dtype),
    _Key("speculative_blocks", "speculative_blocks", "cache", _number, 64),
    _Key("memory", "memory", "cache", _upper),
    _Key("device", "device", "cache", _number),
    _Key("speculative_tokens", "speculative_tokens", "model", _number, 64),
    _Key("mtp", "mtp", "model", _truth),
    _Key("conv_dtype", "conv_dtype", "model", _dtype),
    _Key("ssm_dtype", "ssm_dtype", "model", _dtype),
)

KEY_NAMES = tuple(key.name for key in _KEYS)
"""All keys by their long names."""
