"""How an engine lays its cache out in memory, in the words a user would say it in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from kvweave.errors import ConfigurationError


class MemoryKind(StrEnum):
    """Where memory is, with NIXL's names."""

    DRAM = "DRAM"
    VRAM = "VRAM"


class KVLayout(StrEnum):
    """The order of layer, block, head, token and content in memory, outermost first (vLLM's six)."""

    LBHNC = "LBHNC"
    LBNHC = "LBNHC"
    LHBNC = "LHBNC"
    BLHNC = "BLHNC"
    BLNHC = "BLNHC"
    BHLNC = "BHLNC"


_ALIASES = {"HND": KVLayout.LBHNC, "NHD": KVLayout.LBNHC}


class KeyValuePacking(StrEnum):
    """Where V lies beside K: in the content axis, in the same page, or in a region of its own."""

    CONTENT = "content"
    PAGE = "page"
    REGION = "region"


class ConvOrder(StrEnum):
    """Order of the two axes of a conv state: channel-major (DS) or tap-major (SD, vLLM's default)."""

    DS = "DS"
    SD = "SD"


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """One engine's cache: tokens per block, memory order, padding, memory kind.

    ``block_size`` and ``kernel_block_size`` are in tokens; ``page_padding`` in bytes after each logical block;
    ``num_blocks`` in logical blocks per group. ``dtype`` replaces the dtype of everything with a token axis.
    ``speculative_blocks`` is how many scratch blocks end a state group's block table. ``layout`` also takes vLLM's
    short names HND and NHD.

    >>> CacheConfig(layout="NHD").layout.value
    'LBNHC'
    """

    block_size: int = 16
    layout: str = KVLayout.LBHNC
    num_blocks: int = 1024
    kernel_block_size: int | None = None
    packing: str = KeyValuePacking.CONTENT
    conv_order: str = ConvOrder.SD
    page_padding: int = 0
    dtype: str | None = None
    speculative_blocks: int = 0
    memory: str = MemoryKind.DRAM
    device: int = 0

    def __post_init__(self) -> None:
        self._name_enums()
        for name, least in (
            ("block_size", 1),
            ("num_blocks", 1),
            ("page_padding", 0),
            ("speculative_blocks", 0),
            ("device", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"{name}: {value!r} is not a whole number of at least {least}")
        if self.speculative_blocks >= self.num_blocks:
            raise ConfigurationError(
                f"speculative_blocks: {self.speculative_blocks} of num_blocks={self.num_blocks} are scratch, a state "
                "needs one block beside them; raise num_blocks"
            )
        kernel = self.kernel_block_size
        if kernel is not None and (type(kernel) is not int or kernel < 1 or self.block_size % kernel):
            raise ConfigurationError(
                f"kernel_block_size: {kernel!r} does not divide block_size={self.block_size}; choose a divisor"
            )

    def _name_enums(self) -> None:
        object.__setattr__(self, "layout", _named(KVLayout, _ALIASES.get(str(self.layout), self.layout), "layout"))
        object.__setattr__(self, "packing", _named(KeyValuePacking, self.packing, "packing"))
        object.__setattr__(self, "conv_order", _named(ConvOrder, self.conv_order, "conv_order"))
        object.__setattr__(self, "memory", _named(MemoryKind, self.memory, "memory"))


Kind = TypeVar("Kind", bound=StrEnum)


def _named(kind: type[Kind], value: str, field: str) -> Kind:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join([member.value for member in kind] + (list(_ALIASES) if kind is KVLayout else []))
        raise ConfigurationError(f"{field}: {value!r} is not known; use one of {names}") from None
