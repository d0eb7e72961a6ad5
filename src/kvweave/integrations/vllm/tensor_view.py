"""A live tensor's memory in numbers: addresses, shape, strides in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvweave.core.cache_config import MemoryKind
from kvweave.core.layout import Region
from kvweave.errors import LayoutError

_DIMENSIONS = ("block", "head", "state", "content")


@dataclass(frozen=True, slots=True)
class TensorView:
    """A layer's cache as vLLM's ``allocate_kv_cache`` gives it: (block, head, state, content), strides in bytes.

    ``storage_address`` and ``storage_bytes`` are those of the allocation below it, which layers and groups share.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    storage_address: int
    storage_bytes: int
    memory: MemoryKind = MemoryKind.DRAM
    device: int = 0

    @staticmethod
    def of(layer: str, tensor: Any) -> TensorView:
        """The view of a torch tensor; raises ``LayoutError`` for one that is not laid out like that."""
        shape = tuple(getattr(tensor, "shape", ()))
        if len(shape) != len(_DIMENSIONS):
            raise LayoutError(
                f"{layer}: a cache of shape {shape}, wanted {', '.join(_DIMENSIONS)}; "
                "this layer's cache is not laid out by vLLM's allocation and cannot be transferred"
            )
        item = int(tensor.element_size())
        storage = tensor.untyped_storage()
        on_host = tensor.device.type == "cpu"
        strides = tuple(int(stride) * item for stride in tensor.stride())
        view = TensorView(
            int(tensor.data_ptr()), shape, strides, item,
            int(storage.data_ptr()), int(storage.nbytes()),
            MemoryKind.DRAM if on_host else MemoryKind.VRAM, 0 if on_host else max(int(tensor.get_device()), 0),
        )  # fmt: skip
        if view.shape[3] > 1 and view.strides[3] != item:
            raise LayoutError(
                f"{layer}: content elements lie {view.strides[3]} bytes apart, wanted {item} side by side"
            )
        return view

    @property
    def content_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[3] * self.item_bytes

    def kernel_blocks(self, layer: str, num_blocks: int) -> int:
        """How many of the tensor's blocks are one logical block (vLLM's ``group_kernel_blocks``)."""
        ratio, rest = divmod(self.shape[0], num_blocks)
        if rest or not ratio:
            raise LayoutError(f"{layer}: {self.shape[0]} blocks in the tensor, {num_blocks} in vLLM's configuration")
        return ratio


def merge_regions(views: Iterable[TensorView]) -> tuple[Region, ...]:
    """The allocations below the views, each once; ranges that overlap become one."""
    merged: list[Region] = []
    spans = {(view.memory, view.device, view.storage_address, view.storage_bytes) for view in views}
    for memory, device, address, nbytes in sorted(spans):
        last = merged[-1] if merged else None
        if last and (last.memory, last.device) == (memory, device) and address < last.address + last.nbytes:
            stop = max(last.address + last.nbytes, address + nbytes)
            merged[-1] = Region(last.address, stop - last.address, memory, device)
        else:
            merged.append(Region(address, nbytes, memory, device))
    return tuple(merged)


def place_in(regions: tuple[Region, ...], view: TensorView) -> tuple[int, int]:
    """Number of the region that holds a view, and the view's offset in it."""
    for number, region in enumerate(regions):
        same = (region.memory, region.device) == (view.memory, view.device)
        if same and region.address <= view.address < region.address + region.nbytes:
            return number, view.address - region.address
    raise LayoutError(f"a tensor at {view.address:#x} lies in none of the registered allocations")
