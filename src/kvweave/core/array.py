"""Named logical arrays: what a layer caches, in the coordinates of the whole model.

An array has named axes. For each axis it says into how many units tensor parallelism may split it. It either has a
token axis or is a per-request state. A token axis may be compressed: one entry then stands for r tokens, and entry j
exists once token (j+1)*r - 1 does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvweave.core.whole import require_whole
from kvweave.errors import ConfigurationError

MOST_ELEMENTS = 2**24
"""The most elements along one axis: far above any model, and low enough to count them one by one."""

_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "uint8": 1, "int8": 1,
    "fp8_ds_mla": 656,
}  # fmt: skip

_TORCH_NAMES = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


@dataclass(frozen=True, slots=True)
class DType:
    """An element's type: a name that both sides must share, and its size in bytes.

    An element may be an opaque run of bytes (a quantised MLA entry with its scales inside): give it a name and a size.
    """

    name: str
    nbytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError(f"dtype: name {self.name!r} is no text; name the type of an element")
        require_whole(f"dtype {self.name}", 1, MOST_ELEMENTS, nbytes=self.nbytes)

    @staticmethod
    def of(name: str | DType) -> DType:
        """The dtype of that name; torch's names of the 8-bit types are vLLM's, so that both sides may use either.

        >>> DType.of("bfloat16").nbytes
        2
        """
        if isinstance(name, DType):
            return name
        known = _TORCH_NAMES.get(name, name) if isinstance(name, str) else ""
        if known not in _ITEM_BYTES:
            names = ", ".join(sorted({*_ITEM_BYTES, *_TORCH_NAMES}))
            raise ConfigurationError(f"dtype: {name!r} is not known; use one of {names}")
        return DType(known, _ITEM_BYTES[known])


@dataclass(frozen=True, slots=True)
class Axis:
    """One named axis: ``size`` elements, split by tensor parallelism in ``units`` equal parts.

    ``units`` 0 means that every tensor rank holds all of it.
    """

    name: str
    size: int
    units: int = 0

    def __post_init__(self) -> None:
        require_whole(f"axis {self.name}", 1, MOST_ELEMENTS, size=self.size)
        require_whole(f"axis {self.name}", None, units=self.units)
        if self.units < 0 or (self.units and self.size % self.units):
            raise ConfigurationError(f"axis {self.name}: size {self.size} is not a multiple of its {self.units} units")

    def __str__(self) -> str:
        units = f" in {self.units} units" if self.units not in (0, self.size) else ""
        return f"{self.name} of {self.size}{units}"


@dataclass(frozen=True, slots=True)
class FullReach:
    """Every token stays visible."""

    def __str__(self) -> str:
        return "all tokens"

    def first_needed(self, next_token: int) -> int:
        """The first token that computing ``next_token`` looks at."""
        return 0


@dataclass(frozen=True, slots=True)
class WindowReach:
    """The last ``tokens`` tokens are visible, the computed one included (vLLM's ``sliding_window``)."""

    tokens: int

    def __str__(self) -> str:
        return f"window of {self.tokens} tokens"

    def first_needed(self, next_token: int) -> int:
        """The first token that computing ``next_token`` looks at."""
        return max(0, next_token - self.tokens + 1)


@dataclass(frozen=True, slots=True)
class ChunkReach:
    """The tokens of the current chunk are visible (vLLM's ``attention_chunk_size``)."""

    tokens: int

    def __str__(self) -> str:
        return f"chunk of {self.tokens} tokens"

    def first_needed(self, next_token: int) -> int:
        """The first token that computing ``next_token`` looks at."""
        return next_token // self.tokens * self.tokens


Reach = FullReach | WindowReach | ChunkReach


@dataclass(frozen=True, slots=True)
class TokenAxis:
    """An array's token axis: one entry for ``tokens_per_entry`` tokens; entry j exists once token (j+1)*r - 1 does."""

    tokens_per_entry: int = 1
    reach: Reach = field(default_factory=FullReach)
    dcp_sharded: bool = True

    def __str__(self) -> str:
        return (
            f"one entry for {self.tokens_per_entry} tokens, {self.reach}"
            if self.tokens_per_entry > 1
            else str(self.reach)
        )

    def __post_init__(self) -> None:
        require_whole("token axis", 1, tokens_per_entry=self.tokens_per_entry)
        if not isinstance(self.reach, FullReach):
            require_whole("token axis", 1, window_or_chunk=self.reach.tokens)


@dataclass(frozen=True, slots=True)
class CacheArray:
    """One named logical array of a layer. ``tokens`` is None for a per-request state."""

    part: str
    axes: tuple[Axis, ...]
    dtype: DType
    tokens: TokenAxis | None

    def __str__(self) -> str:
        kind = "a state" if self.tokens is None else str(self.tokens)
        return f"{self.dtype.name} over {', '.join(map(str, self.axes))} ({kind})"

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"array {self.part}: axis names {names} repeat; give each axis its own name")

    def box_text(self, box: Iterable[object]) -> str:
        """One interval per axis, with the axes' names."""
        return ", ".join(f"{axis.name} {interval}" for axis, interval in zip(self.axes, box, strict=True))

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry (or of the whole state) over the whole model."""
        total = self.dtype.nbytes
        for axis in self.axes:
            total *= axis.size
        return total
