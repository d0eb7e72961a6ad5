"""Where a layer's arrays lie inside vLLM's pages: from a tensor's strides and the backend's interior to geometries.

K and V of a head size that is a multiple of 16 are described in finer axes than (head, dim)::

    k   head, dim / 2,  pair 2           v   head, dim / 16,  lane 16

so that one description fits every backend, CPU tiles included, and engines of different backends work together. On a
page of rows the finer axes are contiguous and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvweave.core.array import Axis, CacheArray, DType
from kvweave.core.layout import Geometry
from kvweave.core.spec import LayerSpec, MLAAttentionSpec
from kvweave.errors import ConfigurationError, LayoutError
from kvweave.integrations.vllm.layer_facts import LayerFacts
from kvweave.integrations.vllm.tensor_view import TensorView
from kvweave.integrations.vllm.version import (
    CELL_BACKENDS,
    CPU_TILES,
    DEEPSEEK_V4_BACKENDS,
    DEEPSEEK_V4_VALUES,
    INDEXER_BACKENDS,
    INDEXER_VALUES,
    LATENT_ROW_BACKENDS,
    PLANE_BACKENDS,
    ROW_BACKENDS,
    Interior,
)

_PAIR, _LANE = 2, 16
_AMX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """One array of a layer: its strides, and the offset of its first element from the tensor's address."""

    array: CacheArray
    offset: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class Page:
    """A layer's tensor and how its blocks follow one another. ``kernels`` of them are one logical block."""

    layer: str
    view: TensorView
    kernels: int

    @property
    def entries(self) -> int:
        """Entries of one of the tensor's blocks."""
        return self.view.shape[2]

    def geometry(self, entry_stride: int, axis_strides: tuple[int, ...]) -> Geometry:
        """Entries at one stride within the tensor's block."""
        block = self.view.strides[0]
        return Geometry(
            self.entries * self.kernels, self.entries, block * self.kernels, block, entry_stride, axis_strides
        )

    def tiled(self, tile_entries: int, tile_stride: int, entry_stride: int, axis_strides: tuple[int, ...]) -> Geometry:
        """Entries in tiles inside the tensor's block, which must then be the logical block itself."""
        if self.kernels != 1 or self.entries % tile_entries:
            raise LayoutError(
                f"{self.layer}: {self.kernels} kernel blocks of {self.entries} entries in tiles of {tile_entries}; "
                "choose a block size that the attention backend takes unsplit"
            )
        block = self.view.strides[0]
        return Geometry(self.entries, tile_entries, block, tile_stride, entry_stride, axis_strides)


def choose_interior(layer: str, spec: Any, facts: LayerFacts) -> Interior:
    """How the backend fills this layer's pages; ``ConfigurationError`` names one that is not known."""
    latent = getattr(spec, "head_size_v", None) == 0
    found = None if facts.shuffled else _latent_interior(spec, facts) if latent else _head_interior(spec, facts)
    if found is None:
        order = "shuffled values" if facts.shuffled else f"{spec.num_head_slots} head slots"
        raise ConfigurationError(
            f"{layer}: attention backend {facts.backend} with {order}, {spec.state_content_bytes} bytes a row, "
            f"quantisation {spec.kv_quant_mode.name}, instruction set {facts.isa}: what lies where in its pages is not "
            "known to this connector; choose another attention backend or cache dtype"
        )
    return found


def _latent_interior(spec: Any, facts: LayerFacts) -> Interior | None:
    content = spec.state_content_bytes
    if facts.backend in INDEXER_BACKENDS:
        return Interior.VALUE_SCALE if spec.head_size in INDEXER_VALUES else None
    if facts.backend in DEEPSEEK_V4_BACKENDS:
        return Interior.ROWS if content is None else Interior.VALUE_SCALE if content in DEEPSEEK_V4_VALUES else None
    if facts.backend in LATENT_ROW_BACKENDS:
        return Interior.ROWS if content is None else Interior.CELLS
    return None


def _head_interior(spec: Any, facts: LayerFacts) -> Interior | None:
    content, slots = spec.state_content_bytes, spec.num_head_slots
    if facts.backend == "CPU_ATTN":
        return CPU_TILES.get(facts.isa or "") if content is None and slots is None else None
    if slots is not None:
        return Interior.PLANES if facts.backend in PLANE_BACKENDS and slots == 2 else None
    if content is not None:
        return Interior.CELLS if facts.backend in CELL_BACKENDS else None
    return Interior.ROWS if facts.backend in ROW_BACKENDS else None


def place_layer(page: Page, spec: Any, layer_spec: LayerSpec, interior: Interior, facts: LayerFacts) -> list[Placement]:
    """Where the arrays of an attention layer lie, for one that has a token axis; see ``states`` for the others."""
    if isinstance(layer_spec, MLAAttentionSpec):
        return _latent(page, layer_spec, interior, facts)
    keys, values = layer_spec.arrays()
    if interior == Interior.CELLS:
        return [_cell(page, keys)]
    _check_rows(page, spec)
    fine = spec.head_size % _LANE == 0 and spec.head_size_v % _LANE == 0
    keys, values = (_split(keys, _PAIR, "pair"), _split(values, _LANE, "lane")) if fine else (keys, values)
    match interior:
        case Interior.CPU_TILES:
            return _cpu_tiles(page, spec, keys, values)
        case Interior.AMX_TILES:
            return _amx_tiles(page, spec, keys, values)
        case Interior.PLANES:
            return _planes(page, spec, keys, values)
        case _:
            return _rows(page, spec, keys, values)


def _rows(page: Page, spec: Any, keys: CacheArray, values: CacheArray) -> list[Placement]:
    item, head, entry = page.view.item_bytes, page.view.strides[1], page.view.strides[2]
    return [
        Placement(keys, 0, page.geometry(entry, (head, *_packed(keys.axes[1:], item)))),
        Placement(values, spec.head_size * item, page.geometry(entry, (head, *_packed(values.axes[1:], item)))),
    ]


def _planes(page: Page, spec: Any, keys: CacheArray, values: CacheArray) -> list[Placement]:
    item, slot, entry = page.view.item_bytes, page.view.strides[1], page.view.strides[2]
    head = spec.head_size * item
    return [
        Placement(keys, 0, page.geometry(entry, (head, *_packed(keys.axes[1:], item)))),
        Placement(values, slot, page.geometry(entry, (head, *_packed(values.axes[1:], item)))),
    ]


def _cpu_tiles(page: Page, spec: Any, keys: CacheArray, values: CacheArray) -> list[Placement]:
    """K [dim][token], then V [token][dim] (seen with ``cpu_attn_reshape_and_cache``, instruction set vec)."""
    item, head = page.view.item_bytes, page.view.strides[1]
    dim, row = page.entries * item, spec.head_size * item
    return [
        Placement(keys, 0, page.geometry(item, (head, *_packed(keys.axes[1:], dim)))),
        Placement(values, page.entries * row, page.geometry(row, (head, *_packed(values.axes[1:], item)))),
    ]


def _amx_tiles(page: Page, spec: Any, keys: CacheArray, values: CacheArray) -> list[Placement]:
    """K [token / 16][dim / 2][16][2], V [dim / 16][token / 2][16][2] (seen with instruction set amx)."""
    item, head = page.view.item_bytes, page.view.strides[1]
    row, pair = spec.head_size * item, _PAIR * item
    key_strides = (head, _AMX_TOKENS * pair, item)
    value_strides = (head, page.entries * _LANE * item, pair)
    return [
        Placement(keys, 0, page.tiled(_AMX_TOKENS, _AMX_TOKENS * row, pair, key_strides)),
        Placement(values, page.entries * row, page.tiled(_PAIR, _LANE * pair, item, value_strides)),
    ]


def _cell(page: Page, keys: CacheArray) -> Placement:
    """K and V of one head and token as one opaque element."""
    array = CacheArray("kv", keys.axes[:1], DType(keys.dtype.name, page.view.content_bytes), keys.tokens)
    return Placement(array, 0, page.geometry(page.view.strides[2], (page.view.strides[1],)))


def _latent(page: Page, layer_spec: MLAAttentionSpec, interior: Interior, facts: LayerFacts) -> list[Placement]:
    (array,) = layer_spec.arrays()
    entry = page.view.strides[2]
    if interior != Interior.VALUE_SCALE:
        if array.entry_bytes != page.view.content_bytes:
            raise LayoutError(f"{page.layer}: rows of {page.view.content_bytes} bytes, wanted {array.entry_bytes}")
        return [Placement(array, 0, page.geometry(entry, (array.dtype.nbytes,)))]
    known = INDEXER_VALUES if facts.backend in INDEXER_BACKENDS else DEEPSEEK_V4_VALUES
    value_bytes = known[page.view.content_bytes]
    scale_bytes = page.view.content_bytes - value_bytes
    pages = _backend_pages(page, layer_spec.tokens_per_state, facts)
    placements = []
    for part, nbytes, offset in (
        ("value", value_bytes, 0),
        ("scale", scale_bytes, pages.kernel_block_entries * value_bytes),
    ):
        opaque = DType(f"{array.dtype.name}.{part}", nbytes)
        piece = CacheArray(f"{array.part}.{part}", (Axis("dim", 1),), opaque, array.tokens)
        placements.append(Placement(piece, offset, replace(pages, entry_stride=nbytes, axis_strides=(nbytes,))))
    return placements


def _backend_pages(page: Page, tokens_per_state: int, facts: LayerFacts) -> Geometry:
    """The pages inside which values and scales are apart: the backend's, where they are smaller than the tensor's."""
    if page.view.strides[2] != page.view.content_bytes:
        raise LayoutError(
            f"{page.layer}: rows lie {page.view.strides[2]} bytes apart, wanted {page.view.content_bytes}"
        )
    entries = (facts.page_tokens or page.entries * tokens_per_state) // tokens_per_state
    if entries >= page.entries:
        return page.geometry(0, (0,))
    return page.tiled(entries, entries * page.view.content_bytes, 0, (0,))


def _check_rows(page: Page, spec: Any) -> None:
    """The tensor has the local heads and K and V of the spec's sizes."""
    heads = spec.num_head_slots or spec.num_kv_heads
    wanted = (heads, (spec.head_size + spec.head_size_v) * page.view.item_bytes)
    if spec.num_head_slots is not None:
        wanted = (heads, spec.num_kv_heads * spec.head_size * page.view.item_bytes)
    if (page.view.shape[1], page.view.content_bytes) != wanted:
        raise LayoutError(
            f"{page.layer}: {page.view.shape[1]} head slots with rows of {page.view.content_bytes} bytes in the "
            f"tensor, wanted {wanted[0]} with {wanted[1]}; tensor and spec contradict one another"
        )


def _split(array: CacheArray, inner: int, name: str) -> CacheArray:
    """The array with its last axis in runs of ``inner`` elements."""
    *outer, last = array.axes
    return replace(array, axes=(*outer, Axis(last.name, last.size // inner), Axis(name, inner)))


def _packed(axes: tuple[Axis, ...], innermost: int) -> tuple[int, ...]:
    """Strides of axes one inside the other, whose smallest step is ``innermost`` bytes."""
    strides: list[int] = []
    for axis in reversed(axes):
        strides.append(innermost)
        innermost *= axis.size
    return tuple(reversed(strides))
