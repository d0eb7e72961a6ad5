"""Where the states of a recurrent layer, and the ring of an open group, lie inside a block's page.

vLLM's ``MambaBase.bind_kv_cache`` lays a layer's state tensors one behind the other in the page: the convolution's
taps, then the recurrent state. The sections of the convolution follow one another per channel::

    DS   [x channels | b channels | c channels][tap]          SD   [tap][x channels | b channels | c channels]
"""

from __future__ import annotations

from math import prod

from kvweave.core.array import CacheArray
from kvweave.core.interval import Box
from kvweave.core.layout import Geometry
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.sharding import box_of
from kvweave.core.spec import CircularBufferSpec, MambaSpec
from kvweave.errors import LayoutError
from kvweave.integrations.vllm.interior import Page, Placement


def place_state(
    page: Page,
    layer_spec: MambaSpec,
    shapes: tuple[tuple[int, ...], ...],
    conv_order: str,
    parallel: ParallelConfig,
    rank: RankCoordinates,
    *,
    key_major: bool = False,
) -> list[Placement]:
    """Where the parts of a state lie; raises ``LayoutError`` where this rank's shapes are not the ones expected.

    ``key_major``: the recurrent state lies as (head, state, dim) in memory, whatever its shape says.
    """
    if page.kernels != 1:
        raise LayoutError(f"{page.layer}: a state's block in {page.kernels} kernel blocks; wanted one")
    boxes = [(array, box_of(array, parallel, rank)) for array in layer_spec.arrays()]
    conv = [(array, box) for array, box in boxes if array.part.startswith("conv.")]
    others = [(array, box) for array, box in boxes if not array.part.startswith("conv.")]
    placements, reach = _conv(page, conv, shapes[0], conv_order) if conv else ([], 0)
    for (array, box), shape in zip(others, shapes[1:] if conv else shapes, strict=True):
        extents = tuple(len(interval) for interval in box)
        _check_shape(page.layer, array.part, extents, tuple(shape))
        strides = _recurrent_strides(extents, array.dtype.nbytes, key_major=key_major)
        placements.append(Placement(array, reach, _whole_page(page, strides)))
        reach += prod(extents) * array.dtype.nbytes
    if reach > page.view.content_bytes:
        raise LayoutError(f"{page.layer}: a page of {page.view.content_bytes} bytes, its states need {reach}")
    return placements


def place_ring(page: Page, layer_spec: CircularBufferSpec) -> list[Placement]:
    """Where an open group's ring lies: (row, slot, dim) by the tensor's own strides."""
    (array,) = layer_spec.arrays()
    _, rows, slots, dims = page.view.shape
    _check_shape(page.layer, array.part, tuple(axis.size for axis in array.axes), (rows, slots, dims))
    return [Placement(array, 0, _whole_page(page, page.view.strides[1:]))]


def _conv(
    page: Page, sections: list[tuple[CacheArray, Box]], shape: tuple[int, ...], conv_order: str
) -> tuple[list[Placement], int]:
    """The sections of the convolution, and the bytes of all of them."""
    item = sections[0][0].dtype.nbytes
    taps = len(sections[0][1][1])
    channels = sum(len(box[0]) for _, box in sections)
    wanted = (taps, channels) if conv_order == "SD" else (channels, taps)
    _check_shape(page.layer, "conv", wanted, tuple(shape))
    strides = (item, channels * item) if conv_order == "SD" else (taps * item, item)
    placements, first = [], 0
    for array, box in sections:
        placements.append(Placement(array, first * strides[0], _whole_page(page, strides)))
        first += len(box[0])
    return placements, channels * taps * item


def _recurrent_strides(extents: tuple[int, ...], item: int, *, key_major: bool) -> tuple[int, ...]:
    if key_major:
        _, dims, states = extents
        return (dims * states * item, item, dims * item)
    return tuple(prod(extents[number + 1 :]) * item for number in range(len(extents)))


def _whole_page(page: Page, axis_strides: tuple[int, ...]) -> Geometry:
    return Geometry(1, 1, page.view.strides[0], 0, 0, axis_strides)


def _check_shape(layer: str, part: str, wanted: tuple[int, ...], found: tuple[int, ...]) -> None:
    if wanted != found:
        raise LayoutError(
            f"{layer} {part}: shape {found} on this rank, but the model's configuration and the parallel sizes make it "
            f"{wanted}; this architecture is not described right, serve it without the connector"
        )
